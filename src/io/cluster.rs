//! The Kubernetes API: one adapter for every request that pleach makes.
