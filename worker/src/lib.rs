//! Millrace worker.
