//! A pseudo terminal whose foreground process is a command under test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const PATIENCE: Duration = Duration::from_secs(120);

/// A terminal with a process.
pub struct Terminal {
    child: Child,
    controller: OwnedFd,
    user: OwnedFd,
    output: std::sync::mpsc::Receiver<Vec<u8>>,
    /// Everything that was shown since the last [`Self::forget`], without control sequences.
    shown: String,
    escape: bool,
}

impl Terminal {
    /// Starts a command as the session leader of a new terminal.
    pub fn start(of: &Command) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let user = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        tcsetwinsize(&user, Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let stdio = || Stdio::from(user.try_clone().unwrap());
        // `setsid` of util-linux makes the terminal the controlling one, and then becomes the program.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(of.get_program()).args(of.get_args());
        of.get_current_dir().into_iter().for_each(|folder| {
            command.current_dir(folder);
        });
        for (name, value) in of.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(stdio()).stdout(Stdio::null()).stderr(stdio());
        let child = command.spawn().unwrap();
        let mut reader = File::from(controller.try_clone().unwrap());
        let (sender, output) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, controller, user, output, shown: String::new(), escape: false }
    }

    /// Types.
    pub fn write(&mut self, text: &str) {
        File::from(self.controller.try_clone().unwrap()).write_all(text.as_bytes()).unwrap();
    }

    /// Waits until a text is shown.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        self.wait_for_any(&[text]);
    }

    /// Waits until one of the texts is shown, and returns it.
    #[track_caller]
    pub fn wait_for_any<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        let started = Instant::now();
        loop {
            if let Some(text) = texts.iter().find(|text| self.shown.contains(**text)) {
                return text;
            }
            assert!(started.elapsed() < PATIENCE, "never {texts:?}: {}", self.shown);
            self.read_more();
        }
    }

    /// Forgets what was shown.
    pub fn forget(&mut self) {
        self.shown.clear();
    }

    /// The output since the last [`Self::forget`].
    pub fn screen(&self) -> &str {
        &self.shown
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            self.read_more();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.read_more();
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "the command does not end: {}", self.shown);
        }
    }

    /// `true` if the terminal echoes and delivers lines, as before the command.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.user).unwrap();
        modes.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    fn read_more(&mut self) {
        if let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(20)) {
            for c in String::from_utf8_lossy(&bytes).chars() {
                match (self.escape, c) {
                    (false, '\u{1b}') => self.escape = true,
                    (false, '\r') => {}
                    (false, c) => self.shown.push(c),
                    (true, c) => self.escape = !c.is_ascii_alphabetic(),
                }
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
