//! Planner: from the desired state and the observed state to an ordered plan.
//!
//! [`observe`] is the observed state, [`crd`] the analysis of CRDs and [`plan`] the planner.
//! [`view`] and [`text_diff`] are the differences of a plan per object, and [`allow`] checks a plan
//! against the namespaces and kinds that an environment is allowed to write.

pub mod allow;
pub mod crd;
pub mod observe;
pub mod plan;
pub mod renames;
pub mod text_diff;
pub mod view;
