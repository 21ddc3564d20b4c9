//! The webhook listener, metrics and probes of the loop. Nothing is built yet.
