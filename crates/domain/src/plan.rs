//! The planner: from what is wanted and what is there to ordered steps.

mod deletion;
mod model;

pub use deletion::{Deletion, Grant, Propagation};
pub use model::{
    Action, Body, Cause, Change, Desired, Direction, Edge, EdgeReason, Need, NonSecret, Op,
    Overlay, OverlayId, Plan, Policy, Precondition, Stage, Step, StepId, Until,
};
