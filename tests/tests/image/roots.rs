//! Root file systems of the images, laid out by the script that the Dockerfile runs. It knows nothing of what is run in
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;

/// The images, each with its program.
pub const IMAGES: [(&str, &str); 4] = [
    ("supervisor", "millrace-supervisor"),
    ("worker", "millrace-worker"),
    ("critic", "millrace-critic"),
    ("millrace", "millrace"),
];

/// The time that everything in them has.
pub const EPOCH: u64 = 1_750_000_000;

/// Root file systems and their archives.
pub struct Roots {
    folder: PathBuf,
    /// Where they are if they go with this.
    _own: Option<TempDir>,
}

impl Roots {
    /// Those that the tests of this process share: they go with the last test that holds them. Where
    /// `MILLRACE_IMAGE_ROOTS` names a folder whose `out` the script has filled, they are those, and stay.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Roots>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let named = std::env::var_os("MILLRACE_IMAGE_ROOTS").filter(|folder| !folder.is_empty());
            let there = |folder| Self { folder: PathBuf::from(folder), _own: None };
            let roots = Arc::new(named.map_or_else(Self::lay_out, there));
            *shared = Arc::downgrade(&roots);
            roots
        })
    }

    /// Builds the programs, if they are older than their sources, and lays out all roots.
    ///
    /// # Panics
    /// The script fails.
    pub fn lay_out() -> Self {
        let target = repository().join("target/image");
        std::fs::create_dir_all(&target).unwrap();
        // In one file system with what is run in copies that are hard links.
        let own = tempfile::Builder::new().prefix("roots-").tempdir_in(&target).unwrap();
        let roots = Self { folder: own.path().to_owned(), _own: Some(own) };
        let mut script = Command::new(repository().join("deploy/image/rootfs"));
        let out = roots.folder().join("out");
        script.args(["--profile", &profile(), "--target-dir"]).arg(&target).arg("--out").arg(out);
        script.args(IMAGES.map(|(image, _)| image)).env("SOURCE_DATE_EPOCH", EPOCH.to_string());
        let done = script.status().unwrap();
        assert!(done.success(), "deploy/image/rootfs ended with {done}");
        roots
    }

    /// Where they are: in `out`, as in the stage of the Dockerfile that builds.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The root of an image.
    pub fn root(&self, image: &str) -> PathBuf {
        self.folder.join("out").join(image)
    }

    /// The same as an archive.
    pub fn archive(&self, image: &str) -> PathBuf {
        self.folder.join("out").join(format!("{image}.tar"))
    }
}

/// How the programs are built: `MILLRACE_IMAGE_PROFILE`, or as tests are, which is quicker.
pub fn profile() -> String {
    std::env::var("MILLRACE_IMAGE_PROFILE").unwrap_or_else(|_| "dev".into())
}

/// The folder of the workspace.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What a command says, which must succeed.
///
/// # Panics
/// It fails.
pub fn said(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?} ended with {}: {error}", done.status);
    String::from_utf8_lossy(&done.stdout).into_owned()
}
