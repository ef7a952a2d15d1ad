//! The keeper of a program: its start, its reports, and the work in its own process.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, pidfd_open,
    set_child_subreaper, setsid, wait,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tracing::warn;

use super::process_table::{ProcessTable, end_descendants};
use super::{Program, ProgramPipes, left_message, split_command};
use crate::execute::Launcher;
use crate::execute::launch_message::ALLOCATOR_VARIABLE;

/// The first argument of a keeper, followed by the program and its arguments. Standard input is the socket to the starting
/// process, standard error that of the starting process.
const KEEPER_ARGUMENT: &str = "__keep-program";
/// The name of a keeper, so that killing processes by the name of the starting program spares it until it has done its work.
const KEEPER_NAME: &std::ffi::CStr = c"program-keeper";
const PIPES: usize = 3;
const REAP_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The time for a keeper to end all processes and itself; it gives up earlier.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A message from the keeper, one JSON value per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeeperReport {
    Started(i32),
    /// The program could not be started, with the error number, if there is one, and the reason.
    Failed(Option<i32>, String),
    Left(Vec<String>),
    /// The program has ended, with its wait status, and its processes were ended.
    Ended(i32),
}

/// The socket to a keeper. Closing it ends the program and all of its processes.
#[derive(Debug)]
pub(super) struct KeeperSocket {
    reports: Lines<BufReader<UnixStream>>,
    program: String,
}

/// Starts a program in a keeper. Returns the keeper, its socket, and the process group of the program.
pub(super) async fn start_in_keeper(
    launcher: &Launcher,
    program: &Program,
    pipes: ProgramPipes,
) -> io::Result<(Child, KeeperSocket, Option<Pid>)> {
    let (name, arguments) = split_command(program)?;
    let (ours, theirs) = StdUnixStream::pair()?;
    send_pipes(&ours, &pipes)?;
    drop(pipes);
    let mut command = Command::new(launcher.executable());
    command
        .arg0(OsStr::new(KEEPER_NAME.to_str().unwrap_or_default()))
        .arg(KEEPER_ARGUMENT)
        .arg(name)
        .args(arguments)
        .env_clear()
        .envs(&program.environment)
        .env(ALLOCATOR_VARIABLE, "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null());
    if let Some(folder) = &program.folder {
        command.current_dir(folder);
    }
    let process = command.spawn()?;
    // Holds the other end of the socket.
    drop(command);
    ours.set_nonblocking(true)?;
    let mut keeper = KeeperSocket {
        reports: BufReader::new(UnixStream::from_std(ours)?).lines(),
        program: name.to_string_lossy().into_owned(),
    };
    match keeper.next_report().await? {
        KeeperReport::Started(pid) => Ok((process, keeper, Pid::from_raw(pid))),
        KeeperReport::Failed(Some(number), _) => Err(io::Error::from_raw_os_error(number)),
        KeeperReport::Failed(None, reason) => Err(io::Error::other(reason)),
        report @ (KeeperReport::Left(_) | KeeperReport::Ended(_)) => {
            Err(io::Error::other(format!("unexpected report of its keeper: {report:?}")))
        }
    }
}

fn send_pipes(socket: &StdUnixStream, (input, output, error): &ProgramPipes) -> io::Result<()> {
    let files = [input.as_fd(), output.as_fd(), error.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PIPES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_pipes(socket: &StdUnixStream) -> io::Result<[OwnedFd; PIPES]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PIPES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    files.try_into().map_err(|_| io::Error::other("the starting process sent no pipes"))
}

impl KeeperSocket {
    async fn next_report(&mut self) -> io::Result<KeeperReport> {
        let line = self.reports.next_line().await?;
        let line = line.ok_or_else(|| io::Error::other("its keeper was killed"))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits for the end of the program and its processes.
    pub(super) async fn wait_for_end(&mut self) -> io::Result<ExitStatus> {
        loop {
            match self.next_report().await? {
                KeeperReport::Ended(status) => return Ok(ExitStatus::from_raw(status)),
                KeeperReport::Left(processes) => {
                    warn!(program = self.program, "{}", left_message(&processes));
                }
                KeeperReport::Started(_) | KeeperReport::Failed(..) => {}
            }
        }
    }

    /// Ends the program, and waits until the keeper has done so.
    pub(super) async fn end(self, keeper: &mut Child) {
        drop(self.reports);
        if tokio::time::timeout(END_TIMEOUT, keeper.wait()).await.is_err() {
            warn!(program = self.program, "the keeper of a program does not end");
        }
    }
}

/// Does the work of a keeper if this process was started as one; returns `None` otherwise.
pub(super) fn run_as_keeper(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()?.to_str()? != KEEPER_ARGUMENT {
        return None;
    }
    let kept = keep_program(arguments);
    Some(kept.map_or_else(
        |error| {
            eprintln!("millrace: the keeper of a program failed: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

fn keep_program(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let mut socket = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let program = arguments.next().ok_or_else(|| io::Error::other("no program"))?;
    // Only a name.
    let _ = rustix::thread::set_name(KEEPER_NAME);
    ignore_termination()?;
    // There is no terminal, so failing to create a session does no harm.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let [input, output, error] = receive_pipes(&socket)?;
    let started = std::process::Command::new(&program)
        .args(arguments)
        .env_remove(ALLOCATOR_VARIABLE)
        .stdin(input)
        .stdout(output)
        .stderr(error)
        .process_group(0)
        .spawn();
    let child = match started {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            return send_report(&mut socket, &KeeperReport::Failed(error.raw_os_error(), error.to_string()));
        }
    };
    // Fails if the starting process has ended, which the next step notices.
    let _ = send_report(&mut socket, &KeeperReport::Started(child.as_raw_nonzero().get()));
    let ended = wait_for_end(child, &socket);
    let left = end_processes(child);
    if !left.is_empty() && send_report(&mut socket, &KeeperReport::Left(left.clone())).is_err() {
        eprintln!("millrace: {}: {}", program.display(), left_message(&left));
    }
    if let Some(status) = ended? {
        // Fails if the starting process has ended, so there is no receiver.
        let _ = send_report(&mut socket, &KeeperReport::Ended(status.as_raw()));
    }
    Ok(())
}

/// Ignores signals that ask to terminate: a keeper ends with the starting process or its program, and not before. A program
/// does not inherit it.
pub(crate) fn ignore_termination() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        // The handler stays for the life of the process.
        drop(signal(kind)?);
    }
    Ok(())
}

fn send_report(socket: &mut StdUnixStream, report: &KeeperReport) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    socket.write_all(line.as_bytes())
}

/// Waits for the end of the program; `None` if the socket was closed first. Reaps orphans meanwhile.
fn wait_for_end(program: Pid, socket: &StdUnixStream) -> io::Result<Option<WaitStatus>> {
    let ended = pidfd_open(program, PidfdFlags::empty())?;
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == program {
                return Ok(Some(status));
            }
        }
        let mut events = [PollFd::new(socket, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
        match poll(&mut events, Some(&REAP_INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The starting process sends nothing, so any event means that the socket was closed.
        if !events[0].revents().is_empty() {
            return Ok(None);
        }
    }
}

/// Kills all processes below this one. Returns those that are left.
fn end_processes(program: Pid) -> Vec<String> {
    match ProcessTable::open() {
        Ok(table) => end_descendants(&table),
        Err(_) => {
            let _ = kill_process_group(program, Signal::KILL);
            Vec::new()
        }
    }
}
