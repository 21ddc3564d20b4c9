//! Order of operations: stages, kinds and dependencies between objects.

mod direction;
mod kinds;
mod selector;
mod stage;

pub use crate::object::{
    DefinedKind, Facts, Interception, Parameters, ReadinessDemand, SwitchedOn, configuration,
    interceptions, pod_template, pointed_at, registered_api, registered_services,
};
pub use direction::Direction;
pub use kinds::{
    DeletionClass, defined_kinds, deletion_class, is_builtin_group, kind_rank, sort, stage_of,
};
pub use selector::selects;
pub use stage::{DeclaredStage, StageName};
