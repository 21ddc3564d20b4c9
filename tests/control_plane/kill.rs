//! Kills of the program at chosen moments.

use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pleach_testkit::faults::{Fault, FaultProxy, Moment, Rule, Seen};

use crate::fleet::Fleet;

/// Runs a command line and kills it at a moment of its nth write. Returns whether it was killed.
pub(crate) fn at_write(fleet: &mut Fleet, args: &[&str], moment: Moment, nth: usize) -> bool {
    let killed = run(fleet, args, moment, |kill| Rule::on_writes(kill).nth(nth));
    if killed {
        fleet.forget_killed_runs();
    }
    killed
}

/// Runs a command line and kills it at a moment of the first matching request. Returns whether it
/// was killed. Its Lease remains.
pub(crate) fn at(
    fleet: &mut Fleet,
    args: &[&str],
    moment: Moment,
    is_about: impl Fn(&Seen) -> bool + Send + Sync + 'static,
) -> bool {
    run(fleet, args, moment, |kill| Rule::on(is_about, kill))
}

fn run(fleet: &mut Fleet, args: &[&str], moment: Moment, rule: impl FnOnce(Fault) -> Rule) -> bool {
    let server = fleet.server();
    let proxy = FaultProxy::start(&server).unwrap();
    let child: Arc<Mutex<Option<Child>>> = Arc::default();
    let victim = Arc::clone(&child);
    let kill = Fault::hook(moment, move || {
        if let Some(child) = victim.lock().unwrap().as_mut() {
            drop(child.kill());
        }
    });
    proxy.add(rule(kill));
    fleet.through(proxy.kubeconfig());
    let spawned = fleet
        .command(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    *child.lock().unwrap() = Some(spawned);
    let status = loop {
        if let Some(status) = child.lock().unwrap().as_mut().unwrap().try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    fleet.through(server);
    status.code().is_none()
}

/// Runs a command line repeatedly and kills it at its first write, its second and so on, until it
/// completes.
pub(crate) fn at_every_write(fleet: &mut Fleet, args: &[&str], moment: Moment) {
    for nth in 1..100 {
        if !at_write(fleet, args, moment, nth) {
            return;
        }
    }
    panic!("{args:?} never gets through");
}
