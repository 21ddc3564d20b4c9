//! Tests of the waits for a driver.
