//! Persistent state: the members of a release and their records.

mod applyset;
mod columns;
mod conditions;
mod contention;
mod entry;
mod journal;
mod nodes;
mod owned;
mod rebuild;
mod release;
mod seal;
mod shards;
mod store;
mod summary;
mod uninstall_spec;
mod user_requests;

pub use applyset::apply_set_id;
pub use conditions::{
    AWAITING_APPROVAL, Condition, ConditionKind, DEPENDENCY_NOT_READY, Following, HEARTBEAT,
    WINDOW_CLOSED, awaiting_approval, carry_over, changed_status, degraded, followed,
};
pub use contention::Correction;
pub use entry::{Entry, EntryState, Inventory};
pub use journal::{JOURNAL_FORMAT, JOURNAL_LIMIT, Journal, JournalError, Outcome, Run};
pub use nodes::{NodePhase, NodeProgress, NodesReport};
pub use owned::{FieldKey, OwnedBefore, OwnedFields};
pub use rebuild::{Found, Rebuilt, rebuild};
pub use release::{
    Attempt, AttemptResult, Installed, NodesMemory, Override, RECONCILING, RECORD_FORMAT,
    RecordError, RunFacts, RunOutcome, ShardRef, Source, config_map_data, is_commit, parent_object,
};
pub use seal::{Scope, Seal, SealError, StateKey};
pub use shards::{SHARD_LIMIT, Shard, ShardError, read_shards, write_shards};
pub use store::{STATE_NAMESPACE, Store};
pub use summary::ReleaseSummary;
pub use uninstall_spec::{Memory, RememberedStage};
pub use user_requests::{Suspension, SyncRequest, UserRequests};
