//! Millrace tests.
