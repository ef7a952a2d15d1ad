//! The keys, the editor and the answers of the prompt below the live view.
//!
//! While a question is shown, the terminal does not echo and delivers each key; Ctrl-C stays a signal. Text that was typed before a
//! question is shown is discarded, so that it cannot answer the question. The terminal is restored when no question is shown, before
//! an editor starts, and when this is dropped. A process in the background touches nothing: it would be stopped.

use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use console::Term;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Plan;
use millrace_protocol::question::{Answer, AnswerScope, Question, QuestionId};
use millrace_runtime::Bus;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{self, LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::prompt::{Key, PromptAction, QuestionPrompt};
use super::{AnswerOutcome, send_answer};
use crate::steer::{author_name, patience};
use crate::view::RunDisplay;

/// The time after which the reader of the keys looks whether keys are wanted.
const KEY_POLL: Duration = Duration::from_millis(100);
/// Number of columns that the prompt leaves free.
const MARGIN: usize = 3;

/// Something that the prompt waits for.
#[derive(Debug)]
pub enum PromptEvent {
    Key(Key),
    /// The editor has ended: the new arguments, `None` if they are unchanged, or a mistake.
    Edited(Result<Option<String>, String>),
    Sent(QuestionId, Result<AnswerOutcome, String>),
}

/// Answers questions of a run at the terminal that shows it.
pub struct InPlaceAnswers {
    bus: Bus,
    run: RunId,
    by: String,
    prompt: QuestionPrompt,
    lines: Vec<String>,
    terminal: KeyTerminal,
    sender: mpsc::UnboundedSender<PromptEvent>,
    events: mpsc::UnboundedReceiver<PromptEvent>,
}

impl InPlaceAnswers {
    /// Opens the prompt if a person can use it: the view is a board, and standard input is a terminal.
    pub fn open(bus: &Bus, run: &RunId, view: &RunDisplay) -> Option<Self> {
        if !view.is_board() || !std::io::stdin().is_terminal() {
            return None;
        }
        let (sender, events) = mpsc::unbounded_channel();
        Some(Self {
            bus: bus.clone(),
            run: run.clone(),
            by: author_name(None),
            prompt: QuestionPrompt::new(editor_command().is_some()),
            lines: Vec::new(),
            terminal: KeyTerminal::new(sender.clone()),
            sender,
            events,
        })
    }

    /// Waits for the next event; for ever if there is no prompt.
    pub async fn next_event(answers: &mut Option<Self>) -> PromptEvent {
        match answers {
            Some(answers) => match answers.events.recv().await {
                Some(event) => event,
                // The prompt itself holds a sender.
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }

    /// Shows the question that is next in the state of the run.
    pub fn follow(&mut self, plan: &Plan, view: &mut RunDisplay) {
        self.lines.extend(self.prompt.follow(plan));
        self.refresh(view);
    }

    /// Prints the lines about questions that were closed. Called when the board is drawn without their prompt.
    pub fn print_lines(&mut self, view: &mut RunDisplay) {
        self.lines.drain(..).for_each(|line| view.print_line(&line));
    }

    pub fn handle(&mut self, event: PromptEvent, view: &mut RunDisplay) {
        let action = match event {
            PromptEvent::Key(key) => self.prompt.press(key),
            PromptEvent::Edited(edited) => {
                view.show_again();
                self.prompt.finish_editing(edited)
            }
            PromptEvent::Sent(id, outcome) => {
                self.lines.extend(self.prompt.finish_sending(&id, outcome));
                None
            }
        };
        match action {
            Some(PromptAction::Send { id, question, answer }) => self.send(id, *question, answer),
            Some(PromptAction::Edit { arguments }) => {
                self.terminal.restore();
                view.hide();
                let sender = self.sender.clone();
                tokio::task::spawn_blocking(move || sender.send(PromptEvent::Edited(edit_text(&arguments))));
            }
            None => {}
        }
        self.refresh(view);
    }

    /// Restores the terminal: the view ends.
    pub fn close(&mut self, view: &mut RunDisplay) {
        self.terminal.restore();
        view.set_prompt(Vec::new());
        self.print_lines(view);
    }

    fn refresh(&mut self, view: &mut RunDisplay) {
        let has_keys = match self.prompt.wants_keys() {
            true => self.terminal.take_keys(),
            false => {
                self.terminal.restore();
                false
            }
        };
        let width = usize::from(Term::stderr().size().1).saturating_sub(MARGIN);
        view.set_prompt(if has_keys { self.prompt.lines(width) } else { Vec::new() });
    }

    fn send(&self, id: QuestionId, question: Question, answer: Answer) {
        let (bus, run, by, sender) =
            (self.bus.clone(), self.run.clone(), self.by.clone(), self.sender.clone());
        tokio::spawn(async move {
            let answer = (answer, AnswerScope::Once, by.as_str());
            let never = CancellationToken::new();
            let outcome = send_answer(&bus, &run, (&id, &question), answer, patience(&never)).await;
            let outcome = outcome.map_err(|error| error.to_string());
            // If the view has ended, the outcome has no reader.
            let _ = sender.send(PromptEvent::Sent(id, outcome));
        });
    }
}

/// The terminal of standard input, which delivers keys while they are wanted.
struct KeyTerminal {
    sender: mpsc::UnboundedSender<PromptEvent>,
    /// The modes before keys were wanted.
    saved: Option<Termios>,
    is_wanted: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    has_reader: bool,
}

impl KeyTerminal {
    fn new(sender: mpsc::UnboundedSender<PromptEvent>) -> Self {
        let (is_wanted, is_over) = Default::default();
        Self { sender, saved: None, is_wanted, is_over, has_reader: false }
    }

    /// Delivers keys from now on. Returns `false` if the terminal belongs to another process.
    fn take_keys(&mut self) -> bool {
        if !is_in_foreground() {
            self.is_wanted.store(false, Ordering::Release);
            return false;
        }
        if self.saved.is_none() {
            let stdin = std::io::stdin();
            let Ok(saved) = termios::tcgetattr(&stdin) else { return false };
            let mut modes = saved.clone();
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            if termios::tcsetattr(&stdin, OptionalActions::Now, &modes).is_err() {
                return false;
            }
            let _ = termios::tcflush(&stdin, QueueSelector::IFlush);
            self.saved = Some(saved);
        }
        self.is_wanted.store(true, Ordering::Release);
        if !std::mem::replace(&mut self.has_reader, true) {
            let (sender, is_wanted, is_over) =
                (self.sender.clone(), Arc::clone(&self.is_wanted), Arc::clone(&self.is_over));
            std::thread::spawn(move || read_keys(&sender, &is_wanted, &is_over));
        }
        true
    }

    fn restore(&mut self) {
        self.is_wanted.store(false, Ordering::Release);
        if let Some(saved) = self.saved.take().filter(|_| is_in_foreground()) {
            let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &saved);
        }
    }
}

impl Drop for KeyTerminal {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.restore();
    }
}

/// `true` if the terminal of standard input delivers its keys to this process group.
fn is_in_foreground() -> bool {
    // A terminal that is not the controlling one has no foreground group, and stops no process.
    termios::tcgetpgrp(std::io::stdin()).map_or(true, |group| group == rustix::process::getpgrp())
}

fn read_keys(sender: &mpsc::UnboundedSender<PromptEvent>, is_wanted: &AtomicBool, is_over: &AtomicBool) {
    let stdin = std::io::stdin();
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(KEY_POLL.subsec_nanos()) };
    let mut decoder = KeyDecoder::default();
    while !is_over.load(Ordering::Acquire) {
        if !is_wanted.load(Ordering::Acquire) {
            decoder = KeyDecoder::default();
            std::thread::sleep(KEY_POLL);
            continue;
        }
        let mut readable = [PollFd::new(&stdin, PollFlags::IN)];
        if !matches!(poll(&mut readable, Some(&timeout)), Ok(1..)) {
            continue;
        }
        if !is_wanted.load(Ordering::Acquire) || !is_in_foreground() {
            continue;
        }
        let mut bytes = [0_u8; 256];
        let read = rustix::io::read(&stdin, &mut bytes);
        let Ok(count @ 1..) = read else { return };
        for key in decoder.decode(&bytes[..count]) {
            if sender.send(PromptEvent::Key(key)).is_err() {
                return;
            }
        }
    }
}

/// Decodes the bytes of a terminal: UTF-8, without the sequences of cursor and function keys.
#[derive(Debug, Default)]
struct KeyDecoder {
    /// The beginning of a character.
    pending: Vec<u8>,
    escape: EscapeState,
}

/// The position in an escape sequence.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum EscapeState {
    #[default]
    None,
    /// After ESC.
    Started,
    /// After ESC and `[` or `O`.
    Parameters,
}

impl KeyDecoder {
    fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        bytes.iter().filter_map(|&byte| self.decode_byte(byte)).collect()
    }

    fn decode_byte(&mut self, byte: u8) -> Option<Key> {
        match (self.escape, byte) {
            (EscapeState::Started, b'[' | b'O') => {
                self.escape = EscapeState::Parameters;
                return None;
            }
            (EscapeState::Parameters, 0x40..=0x7e) => {
                self.escape = EscapeState::None;
                return None;
            }
            (EscapeState::Parameters, _) => return None,
            (EscapeState::Started, _) => self.escape = EscapeState::None,
            (EscapeState::None, _) => {}
        }
        match byte {
            b'\r' | b'\n' => Some(Key::Enter),
            0x7f | 0x08 => Some(Key::Backspace),
            0x15 => Some(Key::EraseLine),
            0x1b => {
                self.escape = EscapeState::Started;
                None
            }
            b'\t' => Some(Key::Char(' ')),
            0..=0x1f => None,
            _ => {
                self.pending.push(byte);
                match std::str::from_utf8(&self.pending) {
                    Ok(text) => {
                        let key = text.chars().next().map(Key::Char);
                        self.pending.clear();
                        key
                    }
                    Err(error) => {
                        // Not the beginning of a character.
                        if error.error_len().is_some() {
                            self.pending.clear();
                        }
                        None
                    }
                }
            }
        }
    }
}

/// The editor of the user, as a command line of the shell.
fn editor_command() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|command| !command.trim().is_empty());
    variable("VISUAL").or_else(|| variable("EDITOR"))
}

/// Opens the editor on a text. Returns the new text, or `None` if it is unchanged.
fn edit_text(text: &str) -> Result<Option<String>, String> {
    let editor = editor_command().ok_or("EDITOR is not set")?;
    let name = format!("millrace-{}.json", uuid::Uuid::new_v4().simple());
    let path = std::env::temp_dir().join(name);
    let edit = || -> std::io::Result<(bool, String)> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        drop(file);
        let mut command = std::process::Command::new("sh");
        let status = command.args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(&path).status()?;
        Ok((status.success(), std::fs::read_to_string(&path)?))
    };
    let edited = edit();
    let _ = std::fs::remove_file(&path);
    match edited {
        Ok((true, edited)) if edited.trim() == text.trim() => Ok(None),
        Ok((true, edited)) => Ok(Some(edited)),
        Ok((false, _)) => Err(format!("the editor failed: {editor}; nothing was sent")),
        Err(error) => Err(format!("the editor {editor} can't be used: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded_from_the_bytes_of_a_terminal() {
        let mut decoder = KeyDecoder::default();
        let keys = |text: &str| text.chars().map(Key::Char).collect::<Vec<_>>();
        assert_eq!(decoder.decode("aé".as_bytes()), keys("aé"));
        assert_eq!(decoder.decode(&[0xc3]), []);
        assert_eq!(
            decoder.decode(&[0xa9, 0x7f, b'\r', 0x15]),
            [Key::Char('é'), Key::Backspace, Key::Enter, Key::EraseLine]
        );
        assert_eq!(decoder.decode(b"\x1b[1;5Cx\x1bOPy\x00\xff"), keys("xy"), "cursor and function keys");
    }
}
