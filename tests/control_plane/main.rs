//! Tests with a real control plane: etcd, kube-apiserver and related programs.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy lets tests do this, but not their helpers"
)]

mod abandoned;
mod access;
mod admission;
mod adoption;
mod aggregated;
mod apply_set;
mod audit;
mod backends;
mod bootstrap;
mod browser;
mod chaos;
mod charts;
mod checks;
mod circles;
mod cluster;
mod crash;
mod definitions;
mod degraded;
mod depends;
mod deserted;
mod desk;
mod differences;
mod doctor;
mod drift;
mod example;
mod faults;
mod fleet;
mod forged;
mod gates;
mod handover;
mod ignore;
mod installed;
mod interrupts;
mod kill;
mod kill_points;
mod kubectl;
mod lifecycle;
mod lint;
mod loop_approval;
mod loop_artifacts;
mod loop_crashes;
mod loop_depends;
mod loop_drift;
mod loop_follows;
mod loop_forge;
mod loop_holds;
mod loop_hostile;
mod loop_keeps;
mod loop_keys;
mod loop_limits;
mod loop_live;
mod loop_many;
mod loop_policy;
mod loop_pushes;
mod loop_run;
mod loop_sources;
mod loop_told;
mod moves;
mod once;
mod operator;
mod overlays;
mod ownership;
mod page;
mod plan_files;
mod plane;
mod policy;
mod previews;
mod prune;
mod readiness;
mod readme;
mod reads;
mod recover;
mod recreate;
mod refusals;
mod removal;
mod replicas;
mod requests;
mod restarts;
mod resumed;
mod rights;
mod robustness;
mod rollback;
mod running;
mod samples;
mod schemas;
mod secrets;
mod selectors;
mod several;
mod skew;
mod stages;
mod status;
mod stopped;
mod succession;
mod suspensions;
mod turns;
mod unwaited;
mod waits;
mod yaml;

use plane::{control_plane, shared};
