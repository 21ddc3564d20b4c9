//! The checked-in kind tables match the API server.

use pleach_model::kinds::KindTable;
use pleach_testkit::schemas::served_kinds;

#[tokio::test]
async fn the_checked_in_kinds_are_those_that_are_served() {
    let served = served_kinds().await.unwrap();
    let checked_in = KindTable::for_minor(served.minor())
        .expect("the table of this minor is checked in; `make schemas` writes it");
    assert_eq!(
        checked_in,
        served,
        "the checked-in table of {} is not what is served; `make schemas` writes it",
        served.minor()
    );
}
