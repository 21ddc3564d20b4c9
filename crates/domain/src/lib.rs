//! The pure part of pleach.
//!
//! Everything here takes values and returns values: no clock, no files, no
//! network, no randomness. What cannot be done comes back as data
//! ([`finding::Finding`]), all of it at once, never as the first failure.
//!
//! Reading order follows the data: [`repo`] (what git says) → [`values`] →
//! [`render`] (manifests) → [`observe`] (what the cluster says) → [`diff`] →
//! [`order`] → [`plan`]; [`doctor`] looks at a whole cluster instead of a
//! release. [`definition`] knows what the change of a
//! `CustomResourceDefinition` does to live objects, [`deployer`] who else may own an object, [`ignore`] which
//! fields are left to others, [`overlay`] what is changed for a while only, [`gate`] what is closed
//! meanwhile. [`object`] is what all of them speak of, [`inventory`] what outlives a run,
//! [`state_objects`] what only pleach itself may write, [`readiness`] what "done" means, [`depends`] what comes before what, [`check`] what people say must hold, in [`cel`].
//! [`preview`] says what a change in git does, [`audit`] whether what was planned is what was written,
//! [`status`] whether live objects are ready and as the last run left them.

pub mod age;
pub mod audit;
pub mod cel;
pub mod check;
pub mod config;
pub mod crd;
pub mod dependencies;
pub mod diff;
pub mod doctor;
pub mod ending;
pub mod finding;
pub mod foreign_tools;
pub mod gate;
pub mod ignore;
pub mod inventory;
pub mod kinds;
pub mod lint;
pub mod object;
pub mod observe;
pub mod order;
pub mod overlay;
pub mod plan;
pub mod preview;
pub mod readiness;
pub mod render;
pub mod sanitize;
pub mod state_objects;
pub mod status;
pub mod values;
