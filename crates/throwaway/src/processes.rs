//! Child processes that never outlive their owner.
//!
//! The kernel kills a child when its parent dies (`PR_SET_PDEATHSIG`), which covers panics, Ctrl-C
//! and SIGKILL. The parent is the *thread* that forked. So one thread forks all children and lives
//! as long as [`Processes`].

use std::{
    io,
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus},
    sync::mpsc::{self, Receiver, Sender, SyncSender},
    thread::JoinHandle,
};

/// Makes the kernel kill the command's process when the calling thread dies.
#[cfg(target_os = "linux")]
pub(super) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let bind = move || {
        // After a fork in a multi-threaded program, only async-signal-safe functions are allowed.
        // Both calls are.
        #[expect(
            unsafe_code,
            reason = "prctl and getppid touch no memory of this process"
        )]
        let (bound, parent_now) = unsafe {
            (
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0,
                libc::getppid(),
            )
        };
        if !bound {
            return Err(io::Error::last_os_error());
        }
        // The parent could have died before the call above.
        if u32::try_from(parent_now) != Ok(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    #[expect(
        unsafe_code,
        reason = "the hook makes two system calls, allocates nothing and takes no lock"
    )]
    unsafe {
        command.pre_exec(bind);
    }
}

/// Does nothing: only Linux kills a process when its parent dies.
#[cfg(not(target_os = "linux"))]
pub(super) fn die_with_parent(_command: &mut Command) {}

enum Order {
    Start(&'static str, Box<Command>, SyncSender<io::Result<u32>>),
    Kill(&'static str, SyncSender<()>),
    FindEnded(SyncSender<Option<(&'static str, ExitStatus)>>),
}

/// Group of child processes. Dropping it kills them and waits until they end.
#[derive(Debug)]
pub(super) struct Processes {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Processes {
    pub(super) fn new() -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("throwaway-processes".into())
            .spawn(move || serve(&inbox))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
        })
    }

    /// Starts a process and returns its id.
    pub(super) fn start(&self, name: &'static str, command: Command) -> io::Result<u32> {
        self.order(|answer| Order::Start(name, Box::new(command), answer))
            .unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::BrokenPipe)))
    }

    /// Kills the processes of this name and waits until they end.
    pub(super) fn kill(&self, name: &'static str) {
        // Without the thread, there are no processes.
        let _ended = self.order(|answer| Order::Kill(name, answer));
    }

    /// Returns a process that has ended by itself, if any.
    pub(super) fn find_ended(&self) -> Option<(&'static str, ExitStatus)> {
        self.order(Order::FindEnded).flatten()
    }

    fn order<T>(&self, make: impl FnOnce(SyncSender<T>) -> Order) -> Option<T> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.orders.as_ref()?.send(make(sender)).ok()?;
        answer.recv().ok()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that owned the control plane's processes panicked");
        }
    }
}

fn serve(inbox: &Receiver<Order>) {
    let mut children: Vec<(&'static str, Child)> = Vec::new();
    // Ignore send errors: the caller no longer waits for the answer.
    while let Ok(order) = inbox.recv() {
        match order {
            Order::Start(name, mut command, answer) => {
                // Own process group, so that Ctrl-C in the terminal reaches only the owner.
                command.process_group(0);
                die_with_parent(&mut command);
                let started = command.spawn().map(|child| {
                    let id = child.id();
                    children.push((name, child));
                    id
                });
                let _lost = answer.send(started);
            }
            Order::Kill(name, answer) => {
                let (killed, others): (Vec<_>, Vec<_>) =
                    children.into_iter().partition(|(known, _)| *known == name);
                children = others;
                end(killed);
                let _lost = answer.send(());
            }
            Order::FindEnded(answer) => {
                let _lost = answer.send(children.iter_mut().find_map(|(name, child)| {
                    let status = child.try_wait().ok()??;
                    Some((*name, status))
                }));
            }
        }
    }
    // The data is discarded, so no clean shutdown is needed.
    end(children);
}

/// Kills children and waits until they end.
fn end(mut children: Vec<(&'static str, Child)>) {
    for (name, child) in &mut children {
        if let Err(error) = child.kill() {
            tracing::debug!(%name, %error, "process was gone already");
        }
    }
    for (name, mut child) in children {
        if let Err(error) = child.wait() {
            tracing::warn!(%name, %error, "process could not be waited for");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    }

    #[test]
    fn processes_exit_with_their_owner() {
        let processes = Processes::new().unwrap();
        let id = processes.start("sleep", sleeper()).unwrap();
        let alive = PathBuf::from(format!("/proc/{id}"));
        assert!(alive.exists());

        drop(processes);

        assert!(!alive.exists());
    }

    #[test]
    fn processes_outlive_the_thread_that_started_them() {
        let processes = Processes::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| processes.start("sleep", sleeper()).unwrap());
        });
        assert_eq!(processes.find_ended(), None);
    }

    #[test]
    fn processes_are_killed_by_their_name() {
        let processes = Processes::new().unwrap();
        let alive = |id: u32| PathBuf::from(format!("/proc/{id}")).exists();
        let one = processes.start("one", sleeper()).unwrap();
        let other = processes.start("other", sleeper()).unwrap();
        processes.kill("one");
        assert!(!alive(one) && alive(other));
        // The process ended, but because of the kill.
        assert_eq!(processes.find_ended(), None);
    }

    #[test]
    fn an_ended_process_is_found() {
        let processes = Processes::new().unwrap();
        processes.start("false", Command::new("false")).unwrap();
        let ended = loop {
            if let Some(ended) = processes.find_ended() {
                break ended;
            }
            std::thread::yield_now();
        };
        assert_eq!((ended.0, ended.1.code()), ("false", Some(1)));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let processes = Processes::new().unwrap();
        let error = processes
            .start("absent", Command::new("/nowhere/absent"))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
