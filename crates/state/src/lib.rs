//! State of a release in the cluster.
//!
//! [`inventory`] has the record, the members and the journal of a release, [`overlay`] its
//! temporary changes, [`live`] the objects that the server sent, and [`state_objects`] the objects
//! that only pleach writes.

pub mod inventory;
pub mod live;
pub mod overlay;
pub mod state_objects;
