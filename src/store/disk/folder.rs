//! The folder of the disk store: made if it is missing, and held by one process at a time.
//!
//! Separate from the tables because it knows files and no records. It also remembers that records were once kept here,
//! so that a records file that is gone is noticed: an empty one in its place would run every key again.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::super::{StoreError, StoreErrorKind};

const LOCK: &str = "lock";
const RECORDS: &str = "records.redb";
const FORMAT: &str = "format";
const FORMAT_1: &str = "onceproxy records, format 1\n";

/// What to do about files that cannot be read.
pub(super) const RESTORE: &str = "; restore the folder from a backup: in another folder its keys may run again";

/// A folder that this process holds until this is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    // The kernel lets go of the lock when the file is closed, also after a kill -9.
    lock: File,
}

/// What stands at a path before anybody opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// Nothing.
    Nothing,
    /// A folder in which no records were kept yet.
    Empty,
    /// A folder with records, or something that is no folder.
    Records,
}

/// Looks at a path, and makes nothing.
pub(super) fn look_at(dir: &Path) -> FolderState {
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    if fs::metadata(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        FolderState::Nothing
    } else if dir.is_dir() && ![LOCK, RECORDS, FORMAT].iter().any(|file| is_there(&dir.join(file))) {
        FolderState::Empty
    } else {
        FolderState::Records
    }
}

/// Where the files of an opened folder are to be found for as long as it is used.
///
/// The lock says that no other process has the same *file*. Whoever deletes the folder, moves it away or puts another one
/// in its place leaves this process with files that nobody can open any more, and lets another process take the place.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    files: Vec<(&'static str, Identity)>,
}

/// Which file it is, whatever it is called. Not given to another file while this one is open.
type Identity = (u64, u64);

impl Place {
    /// Looks whether the files are still there: two questions to the kernel, which it answers from memory.
    ///
    /// # Errors
    /// What has become of them, for the log and the probes.
    pub(super) fn check(&self) -> Result<(), String> {
        for (name, opened) in &self.files {
            let found = match fs::metadata(self.dir.join(name)) {
                Ok(file) if identity(&file) == *opened => continue,
                Ok(_) => "is another one now".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => "is gone".to_owned(),
                Err(error) => format!("cannot be found any more ({error})"),
            };
            return Err(format!(
                "the folder {} was deleted, moved or replaced while this process used it: its file {name} {found}; \
                 put it back, or the keys in it may run again",
                self.dir.display()
            ));
        }
        Ok(())
    }
}

fn identity(file: &fs::Metadata) -> Identity {
    (file.dev(), file.ino())
}

impl Folder {
    /// Makes the folder if it is not there, and takes hold of it. Never waits for another process.
    pub(super) fn hold(dir: &Path) -> Result<Folder, StoreError> {
        make(dir).map_err(|error| unusable(dir, error))?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join(LOCK))
            .map_err(|error| unusable(dir, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(dir, &mut lock)),
            Err(TryLockError::Error(error)) => return Err(unusable(dir, error)),
        }
        sign(&mut lock).map_err(|error| unusable(dir, error))?;
        let folder = Folder { dir: dir.to_owned(), lock };
        folder.check()?;
        Ok(folder)
    }

    /// Where the files are that were opened. To be asked for when the records are open.
    pub(super) fn place(&self) -> io::Result<Place> {
        let mut files = vec![(LOCK, identity(&self.lock.metadata()?))];
        match fs::metadata(self.records()) {
            Ok(records) => files.push((RECORDS, identity(&records))),
            // The tests keep records elsewhere. If the folder is gone, the lock says so.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Place { dir: self.dir.clone(), files })
    }

    /// The file of the records.
    pub(super) fn records(&self) -> PathBuf {
        self.dir.join(RECORDS)
    }

    /// Notes durably that records are kept here from now on.
    pub(super) fn seal(&self) -> io::Result<()> {
        let path = self.dir.join(FORMAT);
        if !path.exists() {
            let mut file = File::create(path)?;
            file.write_all(FORMAT_1.as_bytes())?;
            file.sync_all()?;
        }
        // A file's own fsync does not say that its name survives a power loss; the folder's does.
        sync_dir(&self.dir)
    }

    fn check(&self) -> Result<(), StoreError> {
        let format = match fs::read(self.dir.join(FORMAT)) {
            Ok(format) => format,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unusable(&self.dir, error)),
        };
        if format != FORMAT_1.as_bytes() {
            let message = format!(
                "the folder {} was written by another version of this program: its file {FORMAT} says {:?}, and this one \
                 reads {FORMAT_1:?}; start the version that wrote it, or restore the folder from a backup: in another \
                 folder its keys may run again",
                self.dir.display(),
                String::from_utf8_lossy(&format).chars().take(80).collect::<String>()
            );
            return Err(StoreError::without_effect(StoreErrorKind::Unreadable, message));
        }
        let records = fs::metadata(self.records()).map_or(0, |file| file.len());
        if records == 0 {
            let message = format!(
                "the folder {} has held records, but its file {RECORDS} is missing or empty; restore it, or delete \
                 the whole folder if every key may run again",
                self.dir.display()
            );
            return Err(StoreError::without_effect(StoreErrorKind::Unreadable, message));
        }
        Ok(())
    }
}

fn make(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        // Records hold whole responses: nobody else's business.
        builder.mode(0o700);
    }
    builder.create(dir)?;
    match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Leaves our process id in the lock file, for the message of whoever finds it held.
fn sign(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    write!(lock, "{}", std::process::id())
}

fn held(dir: &Path, lock: &mut File) -> StoreError {
    let mut owner = String::new();
    let owner = match lock.take(20).read_to_string(&mut owner) {
        Ok(1..) => format!("process {owner}"),
        _ => "another process".to_owned(),
    };
    let message = format!(
        "the folder {} is held by {owner}, and one process holds it at a time; stop that process, or name another folder \
         by --store disk:DIR (store.url), which knows none of its keys",
        dir.display()
    );
    StoreError::without_effect(StoreErrorKind::Unreachable, message)
}

/// Why a folder is no place for records, and what would be right.
pub(super) fn unusable(dir: &Path, error: io::Error) -> StoreError {
    let message = format!("the folder {} cannot be used: {error}{}", dir.display(), remedy(&error));
    StoreError::without_effect(StoreErrorKind::Refused, message).because(error)
}

/// What would be right, where the system's words alone do not say so.
pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; a file stands in its way: move it, or name another folder by --store disk:DIR (store.url)"
        }
        io::ErrorKind::PermissionDenied => {
            "; give the user that runs onceproxy the right to write there, or name another folder by --store disk:DIR \
             (store.url): keys of this one may run again there"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the file system is mounted read-only: name a folder on another by --store disk:DIR (store.url); keys of this \
             one may run again there"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room, or name a folder on another file system by --store disk:DIR (store.url): keys of this one may run \
             again there"
        }
        _ => "; name another folder by --store disk:DIR (store.url): keys of this one may run again there",
    }
}
