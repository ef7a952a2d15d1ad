//! Runs a program in the root of its image, as an engine would: on a simulated machine, with a read-only root, mounted
//! files and temporary folders, and an unprivileged user. Requires root and namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_tests::machines::TestMachines;

use super::roots::run_and_read_output;

/// The devices that engines provide in every container.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The environment of a program.
#[derive(Debug, Clone, Default)]
pub struct EmulatedContainer {
    /// The root of the image, which is not changed.
    pub root: PathBuf,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// All of its environment variables.
    pub environment: Vec<(String, String)>,
    /// The numeric `user:group`.
    pub user: String,
    /// Read-only files and folders of this machine, and their mount points.
    pub files: Vec<(PathBuf, String)>,
    /// Writable folders of this machine, and their mount points.
    pub volumes: Vec<(PathBuf, String)>,
    /// Folders in memory (tmpfs), each with its options: `/tmp:mode=1777`.
    pub temporary: Vec<String>,
}

impl EmulatedContainer {
    /// A command that runs it on a machine. The process id is the program's own.
    ///
    /// `view` is an unused path in the root's file system, for a copy with the mount points.
    ///
    /// # Panics
    /// The copy can't be made.
    pub fn command_on_machine(&self, machines: &TestMachines, machine: usize, view: &Path) -> Command {
        let script = self.view_script(view);
        let mut command = machines.command_on_machine(machine, Path::new("unshare"));
        command.args(["--mount", "sh", "-euc", &script, "sh"]).args(&self.command);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// The script that creates the view and enters it.
    fn view_script(&self, view: &Path) -> String {
        run_and_read_output(Command::new("cp").args(["--archive", "--link"]).arg(&self.root).arg(view));
        let at = |inside: &str| view.join(inside.trim_start_matches('/'));
        let shown = view.display();
        let mut script = format!("mount --bind {shown} {shown}\n");
        let libraries = list_libraries(&self.root.join(self.command[0].trim_start_matches('/')));
        let files = || self.files.iter().chain(&libraries);
        for (outside, inside) in files().chain(&self.volumes) {
            create_empty_if_missing(&at(inside), outside.is_dir());
            script += &format!("mount --bind {} {}\n", outside.display(), at(inside).display());
        }
        // Bind-mounted folders and device files are mounts of their own.
        for (_, inside) in files() {
            script += &format!("mount -o remount,bind,ro {}\n", at(inside).display());
        }
        for device in DEVICES {
            create_empty_if_missing(&at(device), false);
            script += &format!("mount --bind {device} {}\n", at(device).display());
        }
        create_empty_if_missing(&at("proc"), true);
        script += &format!("mount -t proc proc {}\n", at("proc").display());
        script += &format!("mount -o remount,bind,ro {shown}\n");
        for temporary in &self.temporary {
            let (inside, options) = temporary.split_once(':').unwrap_or((temporary, "mode=1777"));
            create_empty_if_missing(&at(inside), true);
            script += &format!("mount -t tmpfs -o {options} tmpfs {}\n", at(inside).display());
        }
        let user = &self.user;
        script
            + &format!(
                "exec setpriv --no-new-privs chroot --userspec={user} --groups={} {shown} \"$@\"",
                group_of_user(user)
            )
    }
}

/// Returns the libraries of a program, each with the path at which the loader looks for it. A static program has none, as in every
/// image that is delivered.
fn list_libraries(program: &Path) -> Vec<(PathBuf, String)> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = listing.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(|path| (fs::canonicalize(path).unwrap(), path.to_owned())).collect()
}

fn group_of_user(user: &str) -> &str {
    user.split_once(':').map_or(user, |(_, group)| group)
}

/// Creates an empty file or folder if there is none.
fn create_empty_if_missing(path: &Path, is_folder: bool) {
    if path.exists() {
        return;
    }
    let folder = if is_folder { path } else { path.parent().unwrap() };
    fs::create_dir_all(folder).unwrap();
    if !is_folder {
        fs::write(path, "").unwrap();
    }
}
