//! A store in a directory: a file for each record.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, OnClaim, Ownership, Record, RecordId, RecordInfo,
    Release, Removed, Renewal,
};
use idem_core::store::admin::{
    AdminStore, Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable,
};
use idem_core::{Store, StoreError, StoreErrorKind};
use rustix::fs::{FlockOperation, flock};

use crate::place::{Kept, Place, failed};

/// How often a waiter looks.
const LOOKS_EVERY: Duration = Duration::from_millis(5);
/// The longest name of a file or directory, with room for what is added to it.
const NAME: usize = 200;
/// No directory's name has a dot, so none is the name of a file.
const SUFFIX: &str = ".record";
/// The first field of a cursor, which no other store's has.
const CURSOR: &str = "directory";

/// Records in the files of a directory, for the processes of one host. They outlive the processes;
/// a file that was not yet written to the disk does not outlive the host.
///
/// A step holds the lock of the directory while it reads a file and writes the next one in its
/// place. So each step is atomic, and a process that dies within one leaves the record as it was.
#[derive(Debug, Clone)]
pub(crate) struct DirectoryStore {
    root: Arc<Path>,
}

impl DirectoryStore {
    /// Opens a directory, and makes it if there is none.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made.
    pub(crate) fn open(root: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        Ok(Self { root: root.into() })
    }

    /// Returns the file of a record. An id may be longer than a file's name, and file systems may
    /// take upper and lower case for the same: so the name is in hexadecimal, in parts.
    pub(crate) fn file(&self, id: &RecordId) -> PathBuf {
        let mut name = String::new();
        for byte in id.as_str().bytes() {
            if name.len() % (NAME + 1) == NAME {
                name.push('/');
            }
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        self.root.join(name + SUFFIX)
    }

    /// Returns the id of a file's record.
    fn id(&self, file: &Path) -> Option<RecordId> {
        let name = file.strip_prefix(&self.root).ok()?.to_str()?;
        let hex: Vec<u8> = name
            .strip_suffix(SUFFIX)?
            .bytes()
            .filter(|byte| *byte != b'/')
            .collect();
        let mut id = Vec::new();
        for digits in hex.chunks(2) {
            id.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        }
        RecordId::parse(&String::from_utf8(id).ok()?)
    }

    /// Takes the lock of the directory, which ends with the file.
    fn lock(&self) -> io::Result<File> {
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.root.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// Carries out a step on the place of a record, while no other step runs.
    fn step_here<T>(
        &self,
        id: &RecordId,
        step: impl FnOnce(&Place) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let _lock = self.lock().map_err(failed)?;
        step(&Place::read(self.file(id))?)
    }

    /// The same, on a thread that may block.
    async fn step<T: Send + 'static>(
        &self,
        id: &RecordId,
        step: impl FnOnce(&Place) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let id = id.clone();
        blocking(move || store.step_here(&id, step)).await
    }

    /// Returns the ids of all records, in order.
    fn ids(&self) -> io::Result<Vec<RecordId>> {
        let mut ids = Vec::new();
        let mut directories = vec![self.root.to_path_buf()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else {
                    ids.extend(self.id(&entry.path()));
                }
            }
        }
        ids.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        Ok(ids)
    }

    fn page(&self, listing: &Listing) -> Result<Page, StoreError> {
        let mut ids = self.ids().map_err(failed)?;
        if let Some(cursor) = &listing.cursor {
            let [store, last] = cursor.fields()?;
            if store != CURSOR {
                return Err(Cursor::foreign());
            }
            ids.retain(|id| *id.as_str() > *last);
        }
        let has_digests = ids.iter().any(|id| listing.cannot_tell(id));
        ids.retain(|id| listing.may_match(id));
        let limit = listing.limit.max(1);
        let next =
            (ids.len() > limit).then(|| Cursor::of_fields(&[CURSOR, ids[limit - 1].as_str()]));
        ids.truncate(limit);
        let looked_at = ids.len();
        let mut records = Vec::new();
        let mut unreadable = Vec::new();
        for id in ids {
            let info = self.step_here(&id, |place| Ok(place.found.as_ref().map(Kept::info)));
            match info {
                Ok(Some(info)) if listing.matches(&info) => records.push(Listed::new(id, info)),
                Ok(_) => {}
                Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                    unreadable.push(Unreadable::new(id, error));
                }
                Err(error) => return Err(error),
            }
        }
        let page = Page::new(records, unreadable, next);
        Ok(page.with_looked_at(looked_at).with_digests(has_digests))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(failed(io::Error::other(error))))
}

fn claim(place: &Place, claim: &Claim) -> Result<Claimed, StoreError> {
    let effect = match &place.found {
        Some(kept) => kept.record.on_claim(claim),
        None => claim.on_nothing(),
    };
    let left = place
        .found
        .as_ref()
        .map_or(Duration::ZERO, |kept| kept.left);
    let lease_left = place.found.as_ref().and_then(Kept::lease_left);
    let lease_age = place.found.as_ref().map_or(Duration::ZERO, Kept::lease_age);
    let next = match effect {
        OnClaim::Answer(answer) => return Ok(answer),
        OnClaim::Take(next) => next,
        OnClaim::IfLeaseRanOut { attempt, then } => match (lease_left, then.at_age(lease_age)) {
            (Some(lease_left), _) => {
                return Ok(Claimed::InFlight {
                    attempt,
                    lease_left,
                });
            }
            (None, Ok(next)) => next,
            (None, Err(answer)) => return Ok(answer),
        },
        OnClaim::IfIssueLives { grace, .. } if left <= grace => return Ok(Claimed::IssueExpired),
        OnClaim::IfIssueLives { then, .. } => then,
    };
    let owned = Claimed::Owned {
        attempt: next.attempt,
        from: next.origin,
    };
    let hold = next.hold;
    place.put(&Record::InFlight(next), hold, Duration::ZERO)?;
    Ok(owned)
}

fn intervene(place: &Place, intervention: &Intervention) -> Result<Intervened, StoreError> {
    let Some(kept) = &place.found else {
        return Ok(Intervened::Nothing);
    };
    let attempt = kept.record.attempt();
    let effect = kept.record.on_intervention(intervention, kept.left);
    if let OnIntervention::Put {
        if_ran_out: true, ..
    }
    | OnIntervention::Remove { if_ran_out: true } = effect
        && let Some(lease_left) = kept.lease_left()
    {
        return Ok(Intervened::Alive {
            attempt,
            lease_left,
        });
    }
    match effect {
        OnIntervention::Answer(answer) => return Ok(answer),
        OnIntervention::Put {
            record, expires_in, ..
        } => place.put(&record, expires_in, Duration::ZERO)?,
        OnIntervention::Replace { record } => place.replace(kept, &record)?,
        OnIntervention::Remove { .. } => place.remove()?,
    }
    Ok(Intervened::Done { attempt })
}

impl Store for DirectoryStore {
    async fn claim(&self, wish: &Claim) -> Result<Claimed, StoreError> {
        let wish = wish.clone();
        self.step(&wish.id.clone(), move |place| claim(place, &wish))
            .await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let mut answers = Vec::new();
        for issue in issues.iter().cloned() {
            let id = issue.id.clone();
            let step = move |place: &Place| {
                if let Some(kept) = &place.found {
                    return Ok(kept.record.on_issue(&issue));
                }
                place.put(&issue.record(), issue.expires_in(), Duration::ZERO)?;
                Ok(Issued::Issued)
            };
            answers.push(self.step(&id, step).await);
        }
        answers
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let commit = commit.clone();
        self.step(&commit.id.clone(), move |place| {
            place.owner_step(|record| record.on_commit(&commit))
        })
        .await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        let release = release.clone();
        self.step(&release.id.clone(), move |place| {
            place.owner_step(|record| record.on_release(&release))
        })
        .await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let mut answers = Vec::new();
        for renewal in renewals.iter().cloned() {
            let id = renewal.id.clone();
            let step = move |place: &Place| place.owner_step(|record| record.on_renew(&renewal));
            answers.push(self.step(&id, step).await);
        }
        answers
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        let is_awaited = move |place: &Place| {
            let found = place.found.as_ref();
            Ok(found.is_some_and(|kept| {
                kept.record.attempt() == attempt && kept.lease_left().is_some()
            }))
        };
        let looks = async {
            while self.step(id, is_awaited).await? {
                tokio::time::sleep(LOOKS_EVERY).await;
            }
            Ok(())
        };
        tokio::time::timeout(limit, looks).await.unwrap_or(Ok(()))
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.step(id, |place| Ok(place.found.as_ref().map(Kept::info)))
            .await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.step(id, |place| {
            let removed = match &place.found {
                Some(kept) => kept.record.on_remove(kept.left),
                None => Removed::Nothing,
            };
            if removed == Removed::Removed {
                place.remove()?;
            }
            Ok(removed)
        })
        .await
    }
}

impl AdminStore for DirectoryStore {
    async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let store = self.clone();
        let listing = listing.clone();
        blocking(move || store.page(&listing)).await
    }

    async fn intervene(&self, intervention: &Intervention) -> Result<Intervened, StoreError> {
        let intervention = intervention.clone();
        self.step(&intervention.id.clone(), move |place| {
            intervene(place, &intervention)
        })
        .await
    }
}
