//! The tests of documents: one program for all of them.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod collected;
mod formats;
mod real_documents;
