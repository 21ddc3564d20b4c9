//! Carries plans out: observe, schedule, apply, wait, prune, report.
