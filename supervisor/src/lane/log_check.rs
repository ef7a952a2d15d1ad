//! Detects that a restarted server has lost the newest messages of the lane. A restarted server has another id: the plans of the
//! owner may be newer than its log, and new messages may reuse sequences that the owner has read already. No I/O.
//!
//! # Invariants
//!
//! - I76: A lane owner neither decides nor publishes orders until the messages that it has read are confirmed to be on the
//!   connected server. (`tests/tests/queues/power_loss.rs::supervisor_that_survives_a_loss_of_messages_reads_the_lane_again`,
//!   `supervisor/src/lane/log_check.rs::another_server_is_checked_once_before_it_is_confirmed`)

use crate::reader::LogPosition;

/// The server that holds the log, and how far this owner has read it.
#[derive(Debug, Default)]
pub(super) struct LogCheck {
    /// The id of the server on which the log is known to contain what was read.
    server: String,
    position: LogPosition,
    is_checking: bool,
}

/// The result of comparing the id of the connected server with that of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStatus {
    /// The log contains everything that was read.
    Confirmed,
    /// This is not known yet.
    Unconfirmed,
    /// This is not known yet, and the caller must look up the message at this position.
    CheckPosition(LogPosition),
}

impl LogCheck {
    /// The log was read from this server up to this position.
    pub(super) fn new(server: String, position: LogPosition) -> Self {
        Self { server, position, is_checking: false }
    }

    /// Notes the last message that was read.
    pub(super) fn record_position(&mut self, position: LogPosition) {
        self.position = position;
    }

    /// Compares with the id of the connected server; `None` while there is no connection.
    pub(super) fn compare_server(&mut self, server: Option<&str>) -> LogStatus {
        match server {
            Some(server) if server == self.server => LogStatus::Confirmed,
            Some(_) if !self.is_checking => {
                self.is_checking = true;
                LogStatus::CheckPosition(self.position)
            }
            Some(_) | None => LogStatus::Unconfirmed,
        }
    }

    /// Ends a check: the log of this server contains the message, or `None`: the server did not respond.
    pub(super) fn finish_check(&mut self, server: Option<String>) {
        self.is_checking = false;
        if let Some(server) = server {
            self.server = server;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_is_checked_once_before_it_is_confirmed() {
        let position = LogPosition { sequence: 7, ..LogPosition::default() };
        let mut check = LogCheck::new("a".into(), position);
        assert_eq!(check.compare_server(Some("a")), LogStatus::Confirmed);
        assert_eq!(check.compare_server(None), LogStatus::Unconfirmed);
        assert_eq!(check.compare_server(Some("b")), LogStatus::CheckPosition(position));
        assert_eq!(check.compare_server(Some("b")), LogStatus::Unconfirmed);
        check.finish_check(None);
        assert_eq!(check.compare_server(Some("b")), LogStatus::CheckPosition(position));
        check.finish_check(Some("b".into()));
        assert_eq!(check.compare_server(Some("b")), LogStatus::Confirmed);
    }
}
