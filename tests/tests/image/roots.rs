//! Root file systems of the images, created by the script that the Dockerfile runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

use millrace_tests::program::role_program;
use tempfile::TempDir;

/// The images, each with its program.
pub const IMAGES: [(&str, &str); 4] = [
    ("supervisor", "millrace-supervisor"),
    ("worker", "millrace-worker"),
    ("critic", "millrace-critic"),
    ("millrace", "millrace"),
];

/// The modification time of all files in them.
pub const EPOCH: u64 = 1_750_000_000;

/// Root file systems and their archives.
pub struct ImageRoots {
    folder: PathBuf,
    /// Their temporary folder, if they are removed with this value.
    _own: Option<TempDir>,
}

impl ImageRoots {
    /// The roots that the tests of this process share; they are removed after the last test. If `MILLRACE_IMAGE_ROOTS`
    /// names a folder whose `out` the script has filled, those are used and kept.
    pub fn get_or_create_shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<ImageRoots>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let named = std::env::var_os("MILLRACE_IMAGE_ROOTS").filter(|folder| !folder.is_empty());
            let there = |folder| Self { folder: PathBuf::from(folder), _own: None };
            let roots = Arc::new(named.map_or_else(Self::build_all_roots, there));
            *shared = Arc::downgrade(&roots);
            roots
        })
    }

    /// Creates all roots: of the programs of the other tests, or, for a build profile, of programs that the script builds.
    ///
    /// # Panics
    /// The script fails.
    pub fn build_all_roots() -> Self {
        let target = repository_folder().join("target/image");
        fs::create_dir_all(&target).unwrap();
        // On the same file system as the copies, which are hard links.
        let own = tempfile::Builder::new().prefix("roots-").tempdir_in(&target).unwrap();
        let roots = Self { folder: own.path().to_owned(), _own: Some(own) };
        let mut script = rootfs_script(&roots.build_folder().join("out"));
        match build_profile() {
            Some(profile) => script.args(["--profile", &profile, "--target-dir"]).arg(&target),
            None => script.arg("--programs").arg(role_program("millrace").parent().unwrap()),
        };
        script.args(IMAGES.map(|(image, _)| image));
        let output = script.status().unwrap();
        assert!(output.success(), "deploy/image/rootfs exited with {output}");
        roots
    }

    /// Their folder: it has them in `out`, like the Dockerfile's build stage.
    pub fn build_folder(&self) -> &Path {
        &self.folder
    }

    /// The root of an image.
    pub fn root_folder(&self, image: &str) -> PathBuf {
        self.folder.join("out").join(image)
    }

    /// The root of an image as an archive.
    pub fn root_archive(&self, image: &str) -> PathBuf {
        self.folder.join("out").join(format!("{image}.tar"))
    }
}

/// The script, which creates roots in this folder.
pub fn rootfs_script(out: &Path) -> Command {
    let mut script = Command::new(repository_folder().join("deploy/image/rootfs"));
    script.arg("--out").arg(out).env("SOURCE_DATE_EPOCH", EPOCH.to_string());
    script
}

/// The profile in which the script builds static programs: `MILLRACE_IMAGE_PROFILE`. Without one the programs of the other tests
/// are used, which are not static.
pub fn build_profile() -> Option<String> {
    std::env::var("MILLRACE_IMAGE_PROFILE").ok().filter(|profile| !profile.is_empty())
}

/// The folder of the workspace.
pub fn repository_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The output of a command that must succeed.
///
/// # Panics
/// It fails.
pub fn run_and_read_output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} exited with {}: {error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
