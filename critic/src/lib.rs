//! Millrace critic.
