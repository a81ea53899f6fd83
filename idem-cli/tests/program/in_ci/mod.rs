//! Tests that take minutes, or measure.

mod million;
