//! A program in the root of its image, as an engine would run it: on a machine of its own, with a root that can't be
//! written, the files and temporary folders that it is given, and as a user who may nothing. Needs root, and namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_tests::machines::Machines;

use super::roots::said;

/// What engines give to every container.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// What a program runs in.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// The root of the image; it stays as it is.
    pub root: PathBuf,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// All of its environment.
    pub environment: Vec<(String, String)>,
    /// Who it is: `user:group`, by number.
    pub user: String,
    /// Files and folders of this machine, and where they are to be seen, to be read only.
    pub files: Vec<(PathBuf, String)>,
    /// Folders of this machine that it may write, and where they are to be seen.
    pub volumes: Vec<(PathBuf, String)>,
    /// Folders in memory, each with its options: `/tmp:mode=1777`.
    pub temporary: Vec<String>,
}

impl Container {
    /// A command that runs it on a machine. Its process is the program's own.
    ///
    /// `view` is an empty place in the file system of the root, for a copy of it with the places of what is given.
    ///
    /// # Panics
    /// The copy can't be made.
    pub fn on(&self, machines: &Machines, machine: usize, view: &Path) -> Command {
        let script = self.script(view);
        let mut command = machines.command(machine, Path::new("unshare"));
        command.args(["--mount", "sh", "-euc", &script, "sh"]).args(&self.command);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// What makes the view and goes into it.
    fn script(&self, view: &Path) -> String {
        said(Command::new("cp").args(["--archive", "--link"]).arg(&self.root).arg(view));
        let at = |inside: &str| view.join(inside.trim_start_matches('/'));
        let shown = view.display();
        let mut script = format!("mount --bind {shown} {shown}\n");
        for (outside, inside) in self.files.iter().chain(&self.volumes) {
            place(&at(inside), outside.is_dir());
            script += &format!("mount --bind {} {}\n", outside.display(), at(inside).display());
        }
        // Bound folders are mounts of their own, and so is a file of a device.
        for (_, inside) in &self.files {
            script += &format!("mount -o remount,bind,ro {}\n", at(inside).display());
        }
        for device in DEVICES {
            place(&at(device), false);
            script += &format!("mount --bind {device} {}\n", at(device).display());
        }
        place(&at("proc"), true);
        script += &format!("mount -t proc proc {}\n", at("proc").display());
        script += &format!("mount -o remount,bind,ro {shown}\n");
        for temporary in &self.temporary {
            let (inside, options) = temporary.split_once(':').unwrap_or((temporary, "mode=1777"));
            place(&at(inside), true);
            script += &format!("mount -t tmpfs -o {options} tmpfs {}\n", at(inside).display());
        }
        let user = &self.user;
        script
            + &format!(
                "exec setpriv --no-new-privs chroot --userspec={user} --groups={} {shown} \"$@\"",
                group(user)
            )
    }
}

fn group(user: &str) -> &str {
    user.split_once(':').map_or(user, |(_, group)| group)
}

/// Makes an empty file or folder where there is none.
fn place(path: &Path, is_folder: bool) {
    if path.exists() {
        return;
    }
    let folder = if is_folder { path } else { path.parent().unwrap() };
    fs::create_dir_all(folder).unwrap();
    if !is_folder {
        fs::write(path, "").unwrap();
    }
}
