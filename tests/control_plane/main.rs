//! cp
