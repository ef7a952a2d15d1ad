//! Millrace runtime.
