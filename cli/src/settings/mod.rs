//! The settings of the command: the environment, `.env`, and `millrace.toml` of the folder and of the user. All of them
//! become variables of the environment, which the rest of the program and the processes of a local cluster read.
//!
//! ```text
//! flag ▸ environment ▸ .env ▸ [profile.NAME] ▸ top of millrace.toml      the folder's file before the user's
//! ```
//!
//! A process can't change its own environment safely, so it starts itself again with the complete one.
//!
//! # Invariants
//!
//! - I70: A setting comes from the first of command line, environment, `.env`, profile and file that has it; a folder's files
//!   name no program to run, files that another user may write are refused, and one of another user above the working folder is
//!   ignored with a warning. (`cli/tests/command_line.rs::settings_are_taken_from_the_first_place_that_has_them`,
//!   `cli/tests/command_line.rs::mistakes_in_settings_are_refused_with_file_and_line`,
//!   `cli/src/settings/mod.rs::files_of_other_users_are_ignored_above_the_working_folder_and_refused_in_it`,
//!   `tests/tests/docs.rs::page_of_settings_has_exactly_the_variables_of_the_sources`)
//! - I97: A file of a folder, which may have come with a checkout, names no program to run, no file to write, and no address for
//!   a credential of the environment. (`cli/tests/command_line.rs::files_of_a_folder_can_run_nothing_and_get_no_credentials`)

mod file;
mod variables;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow, bail};
use millrace_local_cluster::folders;
use millrace_strict_yaml::did_you_mean_hint;

use file::{FileOwner, FileSetting, SettingsFile};
use variables::{CONFIG, PREFIX, PROFILE};

pub use variables::{VARIABLES, ValueKind, Variable};

const FILE_NAME: &str = "millrace.toml";
/// The value of [`CONFIG`] with which no file is read.
const NO_FILES: &str = "none";
/// The size of the largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The places of settings; passed in, so that tests need no environment of their own.
pub struct SettingsSources<'a> {
    pub environment: &'a dyn Fn(&str) -> Option<OsString>,
    pub profile: Option<String>,
    /// The folder that the command was called in.
    pub working_folder: PathBuf,
    /// The folder of the user's own settings.
    pub user_folder: Option<PathBuf>,
    pub user: u32,
}

/// The settings in effect, and their origin.
#[derive(Debug, Default)]
pub struct Settings {
    pub values: BTreeMap<String, Setting>,
    pub files: Vec<PathBuf>,
    /// The name of the profile in effect.
    pub profile: Option<String>,
    /// A warning for each file that is ignored.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub value: OsString,
    pub origin: SettingOrigin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    Environment,
    File {
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The profile that contains it, if any.
        profile: Option<String>,
    },
}

impl SettingsSources<'_> {
    pub fn of_this_process(profile: Option<String>) -> anyhow::Result<Self> {
        let working_folder = std::env::current_dir().context("can't read the path of the working folder")?;
        Ok(SettingsSources {
            environment: &|name| std::env::var_os(name),
            profile,
            working_folder,
            user_folder: folders::default_settings_folder(),
            user: rustix::process::geteuid().as_raw(),
        })
    }

    /// Reads all sources. A variable that is set but empty counts as unset. A file of another user in a folder above the
    /// working folder is ignored with a warning: every user can create one in `/tmp`.
    ///
    /// # Errors
    /// A file can't be read or has a mistake, one of the working folder belongs to another user, or there is no such profile.
    pub fn read_settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::default();
        for variable in VARIABLES {
            if let Some(value) = self.variable(variable.name) {
                settings.add(variable.name, value, SettingOrigin::Environment);
            }
        }
        let config = self.variable(CONFIG);
        if config.as_deref().is_some_and(|config| config == NO_FILES) {
            return Ok(settings);
        }
        self.add_dotenv(&mut settings)?;
        let files = self.read_files(config.map(PathBuf::from), &mut settings)?;
        let profile = self.profile.clone().filter(|profile| !profile.is_empty()).or_else(|| {
            settings.values.get(PROFILE).map(|profile| profile.value.to_string_lossy().into_owned())
        });
        if let Some(profile) = profile {
            check_profile_exists(&profile, &files, &self.working_folder)?;
            for (path, file) in &files {
                let own = file.profiles.get(&profile).into_iter().flatten();
                own.for_each(|setting| settings.add_from_file(path, setting, Some(&profile)));
            }
            settings.profile = Some(profile);
        }
        for (path, file) in &files {
            file.defaults.iter().for_each(|setting| settings.add_from_file(path, setting, None));
        }
        self.refuse_addresses_for_other_credentials(&settings)?;
        Ok(settings)
    }

    /// Refuses an address that a file of the folder sets if a credential of the environment would be sent to it: the files
    /// may have come with a checkout.
    fn refuse_addresses_for_other_credentials(&self, settings: &Settings) -> anyhow::Result<()> {
        let user_file = self.user_folder.as_ref().map(|folder| folder.join(FILE_NAME));
        let config = self.variable(CONFIG).map(|path| self.working_folder.join(path));
        for (name, setting) in &settings.values {
            let SettingOrigin::File { file, line, .. } = &setting.origin else { continue };
            let is_of_user = user_file.as_ref() == Some(file) || config.as_ref() == Some(file);
            let credential = variables::credential_for_address(name, &setting.value.to_string_lossy());
            let Some(credential) = credential.filter(|_| !is_of_user) else { continue };
            if self.variable(&credential).is_some() {
                bail!(
                    "{}:{line}: {credential} of the environment would be sent to an address that this file sets; set {name} \
                     in the environment or in your own {FILE_NAME}",
                    file.display()
                );
            }
        }
        Ok(())
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }

    fn add_dotenv(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let path = self.working_folder.join(".env");
        let Some(text) = read_own_file(&path, self.user)? else { return Ok(()) };
        let assignments = file::parse_dotenv(&text)
            .map_err(|mistake| anyhow!("{}:{}: {}", path.display(), mistake.line, mistake.what))?;
        // The last assignment of a name counts, as in a shell.
        for assignment in assignments.into_iter().rev().filter(|assignment| !assignment.value.is_empty()) {
            let (name, line) = (assignment.name.as_str(), assignment.line);
            if name.starts_with(PREFIX) {
                check_dotenv_variable(name).map_err(|what| anyhow!("{}:{line}: {what}", path.display()))?;
            } else if !variables::is_provider_variable(name) || self.variable(name).is_some() {
                continue;
            }
            let origin = SettingOrigin::File { file: path.clone(), line, profile: None };
            settings.add(name, assignment.value.clone().into(), origin);
        }
        settings.files.push(path);
        Ok(())
    }

    /// Reads the settings files, the one that takes precedence first.
    fn read_files(
        &self,
        only: Option<PathBuf>,
        settings: &mut Settings,
    ) -> anyhow::Result<Vec<(PathBuf, SettingsFile)>> {
        let is_only = only.is_some();
        let candidates = match only {
            Some(path) => vec![(self.working_folder.join(path), FileOwner::User)],
            None => {
                let user = self.user_folder.as_ref().map(|folder| folder.join(FILE_NAME));
                let project = self.find_project_file(user.as_ref(), &mut settings.warnings);
                let project = project.map(|path| (path, FileOwner::Project));
                project.into_iter().chain(user.map(|path| (path, FileOwner::User))).collect()
            }
        };
        let mut files = Vec::new();
        for (path, owner) in candidates {
            let Some(text) = read_own_file(&path, self.user)? else {
                if is_only {
                    bail!("{CONFIG}: there is no file {}", path.display());
                }
                continue;
            };
            let folder = path.parent().unwrap_or(&path);
            let file = file::parse_settings_file(&text, folder, owner)
                .map_err(|mistake| anyhow!("{}:{}: {}", path.display(), mistake.line, mistake.what))?;
            settings.files.push(path.clone());
            files.push((path, file));
        }
        Ok(files)
    }

    /// Returns the settings file of the working folder or of the nearest folder above it, other than the user's own. Warns of
    /// those of other users that it passes over.
    fn find_project_file(&self, user_file: Option<&PathBuf>, warnings: &mut Vec<String>) -> Option<PathBuf> {
        for (depth, folder) in self.working_folder.ancestors().enumerate() {
            let path = folder.join(FILE_NAME);
            if Some(&path) == user_file || !path.exists() {
                continue;
            }
            match self.other_owner(&path).filter(|_| depth > 0) {
                None => return Some(path),
                Some(owner) => warnings.push(format!(
                    "millrace: warning: ignoring {}, which belongs to another user (id {owner}) and is not in the working folder",
                    path.display()
                )),
            }
        }
        None
    }

    /// Returns the owner of a file, or of a link to it, if that is neither this user nor root.
    fn other_owner(&self, path: &Path) -> Option<u32> {
        let owners = [fs::symlink_metadata(path), fs::metadata(path)].into_iter().flatten();
        owners.map(|metadata| metadata.uid()).find(|owner| *owner != self.user && *owner != 0)
    }
}

impl Settings {
    fn add(&mut self, name: &str, value: OsString, origin: SettingOrigin) {
        self.values.entry(name.to_owned()).or_insert(Setting { value, origin });
    }

    fn add_from_file(&mut self, path: &Path, setting: &FileSetting, profile: Option<&str>) {
        if setting.value.is_empty() {
            return;
        }
        let profile = profile.map(str::to_owned);
        let origin = SettingOrigin::File { file: path.to_owned(), line: setting.line, profile };
        self.add(setting.name, setting.value.clone().into(), origin);
    }

    /// Starts this process again with the settings from files in its environment, and without files. Returns if there is
    /// nothing to change.
    pub fn apply_to_process(&self) -> anyhow::Result<()> {
        let from_files =
            self.values.iter().filter(|(_, setting)| setting.origin != SettingOrigin::Environment);
        let variables: Vec<_> = from_files.map(|(name, setting)| (name, &setting.value)).collect();
        // The processes that this one starts shall not warn again.
        if variables.is_empty() && self.warnings.is_empty() {
            return Ok(());
        }
        let mut arguments = std::env::args_os();
        let program = std::env::current_exe().context("can't find the path of this program")?;
        let mut command = Command::new(&program);
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        let error = command.args(arguments).envs(variables).env(CONFIG, NO_FILES).exec();
        Err(anyhow!(error).context(format!("can't start {} with the settings", program.display())))
    }
}

fn check_dotenv_variable(name: &str) -> Result<(), String> {
    let variable = Variable::by_name(name).ok_or_else(|| {
        let known = VARIABLES.iter().map(|variable| variable.name);
        format!("unknown variable {name}{}", did_you_mean_hint(name, known))
    })?;
    match variable.scope {
        variables::VariableScope::Everywhere
        | variables::VariableScope::Secret
        | variables::VariableScope::Selection => Ok(()),
        variables::VariableScope::User => Err(format!(
            "{name} names a program to run or a file to write: set it in the environment or in your own {FILE_NAME}"
        )),
        variables::VariableScope::Environment => Err(format!("{name} can only be set in the environment")),
    }
}

fn check_profile_exists(
    profile: &str,
    files: &[(PathBuf, SettingsFile)],
    working_folder: &Path,
) -> anyhow::Result<()> {
    let known = || files.iter().flat_map(|(_, file)| file.profiles.keys().map(String::as_str));
    if known().any(|name| name == profile) {
        return Ok(());
    }
    let Some((path, _)) = files.first() else {
        bail!(
            "there is no profile {profile:?}: no {FILE_NAME} was found in {}, the folders above it, or your own settings",
            working_folder.display()
        );
    };
    let hint = did_you_mean_hint(profile, known());
    let mut names: Vec<&str> = known().collect();
    names.sort_unstable();
    names.dedup();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    bail!("{}: there is no [profile.{profile}] (profiles: {names}){hint}", path.display())
}

/// Reads a settings file; `None` if there is none. Refuses files that another user may have written, since settings
/// decide where keys and documents are sent.
fn read_own_file(path: &Path, user: u32) -> anyhow::Result<Option<String>> {
    let unreadable = || format!("can't read {}", path.display());
    let metadata = match fs::metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        metadata => metadata.with_context(unreadable)?,
    };
    if metadata.is_dir() {
        // A folder named .env is a Python environment.
        return Ok(None);
    }
    let advice = format!("or set {CONFIG}={NO_FILES} to read no files");
    if metadata.uid() != user && metadata.uid() != 0 {
        bail!(
            "{} belongs to another user (id {}), who could redirect your keys and documents; make it yours with chown, {advice}",
            path.display(),
            metadata.uid()
        );
    }
    if metadata.mode() & 0o002 != 0 {
        bail!(
            "every user may write {}, and so redirect your keys and documents; `chmod o-w` it, {advice}",
            path.display()
        );
    }
    if metadata.len() > MAX_BYTES {
        bail!("{} has {} bytes; settings have at most {MAX_BYTES}", path.display(), metadata.len());
    }
    fs::read_to_string(path).map(Some).with_context(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_users_are_ignored_above_the_working_folder_and_refused_in_it() {
        let root = tempfile::tempdir().unwrap();
        let (above, below) = (root.path().join(FILE_NAME), root.path().join("a/b"));
        fs::create_dir_all(&below).unwrap();
        fs::write(&above, "slots = 3\n").unwrap();
        let own = fs::metadata(&above).unwrap().uid();
        // Files of root are trusted, so root changes the owner of the file. Other users read it with another user id.
        if own == 0 {
            std::os::unix::fs::chown(&above, Some(1), None).unwrap();
        }
        let user = own + 2;
        let read = |working_folder: &Path| {
            let (profile, user_folder) = (None, None);
            let working_folder = working_folder.to_owned();
            SettingsSources { environment: &|_| None, profile, working_folder, user_folder, user }
                .read_settings()
        };
        let settings = read(&below).unwrap();
        assert!(settings.values.is_empty() && settings.files.is_empty(), "{settings:?}");
        let [warning] = settings.warnings.as_slice() else { panic!("{settings:?}") };
        assert!(warning.contains(&above.display().to_string()) && warning.contains("(id "), "{warning}");
        let error = read(root.path()).unwrap_err().to_string();
        assert!(error.contains("belongs to another user"), "{error}");
    }
}
