//! Millrace supervisor.
