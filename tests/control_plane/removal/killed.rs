//! Killed uninstalls.

use pleach_testkit::faults::{Moment, Seen};
use rstest::rstest;

use super::{everything, fleet, has_state};
use crate::{kill, samples};

#[rstest]
#[case("killed-before", Moment::BeforeForwarding)]
#[case("killed-after", Moment::AfterForwarding)]
fn an_uninstall_that_is_killed_is_gone_on_with(
    #[case] environment: &'static str,
    #[case] moment: Moment,
) {
    let mut fleet = fleet(environment, &everything(environment));
    fleet.applied();
    let target = format!("{environment}/shop");
    kill::at_every_write(&mut fleet, &["uninstall", &target, "--yes"], moment);
    for gone in ["cm/settings", "deployment/shop", "service/shop", "sa/shop"] {
        assert!(!fleet.exists(&["-n", environment, gone]), "{gone}");
    }
    assert!(fleet.exists(&["-n", environment, "pvc/data"]));
    assert!(!fleet.exists(&["release", &format!("{environment}.shop")]));
    // The record is deleted last, so no kill leaves anything behind.
    assert!(!has_state(&fleet));
    fleet.applied();
}

/// A run that is killed after the deletion of the record leaves its Lease, which the next run
/// deletes.
#[rstest]
#[case("lease-before", Moment::BeforeForwarding)]
#[case("lease-after", Moment::AfterForwarding)]
fn an_uninstall_that_is_killed_at_its_very_end_leaves_nothing(
    #[case] environment: &'static str,
    #[case] moment: Moment,
) {
    let mut fleet = fleet(environment, &samples::config_map("settings", "v"));
    fleet.applied();
    let target = format!("{environment}/shop");
    let uninstall = ["uninstall", target.as_str(), "--yes"];
    let is_lease = |seen: &Seen| seen.method == "DELETE" && seen.path.contains("/leases/");
    assert!(kill::at(&mut fleet, &uninstall, moment, is_lease));
    assert!(!fleet.exists(&["release", &format!("{environment}.shop")]));
    let lease = format!("{environment}.shop");
    let lease = ["-n", "pleach-system", "lease", lease.as_str()];
    assert_eq!(fleet.exists(&lease), moment == Moment::BeforeForwarding);
    fleet.run(&uninstall).ended_with(1).says("is not installed");
    assert!(!fleet.exists(&lease));
    assert!(!has_state(&fleet));
}
