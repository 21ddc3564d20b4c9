//! Decisions of a rehearsal: an upgrade on a copy of the cluster.
//!
//! [`scope`] selects the objects to copy, [`redact`] replaces secret values, [`certificates`] makes
//! certificates in place of those of the cluster, [`rekey`] renews the digests and seals of the
//! records, [`dump`] is the file format of a copy, [`storage`] has the
//! place of an object in etcd, [`compare`] compares the plan on the copy with the plan on the
//! cluster, [`hints`] has next steps for refusals, and [`report`] is the result.

pub mod certificates;
pub mod compare;
pub mod dump;
pub mod hints;
pub mod redact;
pub mod rekey;
pub mod report;
pub mod scope;
pub mod storage;
