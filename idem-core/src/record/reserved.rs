//! The names of operations that are the library's own: no call of an application has one.

/// The operation of the trail of operators' decisions.
pub(crate) const TRAIL: &str = "idem.audit";

/// The first part of the operation of a lock's record; the lock's own name follows.
pub(crate) const LOCK_PREFIX: &str = "idem.lock/";

/// The first part of the operation of a step's record; the call's operation and the step's name
/// follow.
pub(crate) const STEP_PREFIX: &str = "idem.step/";

/// A name that is reserved, or all names with one beginning.
pub(crate) struct Reserved {
    /// With a `/` at its end it is a beginning, and the name before the `/` is reserved too.
    name: &'static str,
    /// The refusal of a call.
    pub(crate) refusal: &'static str,
    /// The refusal of a name that is checked while compiling.
    pub(crate) refusal_in_code: &'static str,
}

const RESERVED: &[Reserved] = &[
    Reserved {
        name: TRAIL,
        refusal: "its name is reserved for the trail of operators' decisions; give it another one",
        refusal_in_code: "`idem.audit` is reserved for the trail of operators' decisions: write \
            for example `name = \"orders.create\"`",
    },
    Reserved {
        name: LOCK_PREFIX,
        refusal: "names that begin with `idem.lock` are reserved for locks; give it another one, \
            or take a lock with `Idempotency::lock`",
        refusal_in_code: "names that begin with `idem.lock` are reserved for locks: write for \
            example `name = \"orders.create\"`",
    },
    Reserved {
        name: STEP_PREFIX,
        refusal: "names that begin with `idem.step` are reserved for steps; give it another one, \
            or name a step with `of_step`",
        refusal_in_code: "names that begin with `idem.step` are reserved for steps: write for \
            example `name = \"orders.create\"`",
    },
];

/// Returns the row of the table that an operation's name falls under.
pub(crate) const fn reserved(operation: &str) -> Option<&'static Reserved> {
    let mut index = 0;
    while index < RESERVED.len() {
        if covers(RESERVED[index].name, operation) {
            return Some(&RESERVED[index]);
        }
        index += 1;
    }
    None
}

/// Whether this is the operation of a lock's record, such as `idem.lock/disks.compact` for
/// [`lock("disks.compact")`](crate::Idempotency::lock).
///
/// Such names, and `idem.lock` itself, are reserved: no call has them. So a lock and an operation
/// of the same name have different records.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::store::record::is_lock;
///
/// assert!(is_lock("idem.lock/disks.compact"));
/// assert!(!is_lock("disks.compact"));
/// ```
pub const fn is_lock(operation: &str) -> bool {
    covers(LOCK_PREFIX, operation)
}

/// Whether this is the operation of a record of [steps](crate::step), such as
/// `idem.step/orders.place/charge` for the step `charge` of `orders.place`.
///
/// Such names, and `idem.step` itself, are reserved: no call has them. So a step and an operation
/// of the same name have different records.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::store::record::is_step;
///
/// assert!(is_step("idem.step/orders.place/charge"));
/// assert!(!is_step("orders.place/charge"));
/// ```
pub const fn is_step(operation: &str) -> bool {
    covers(STEP_PREFIX, operation)
}

const fn covers(reserved: &str, operation: &str) -> bool {
    let (name, is_beginning) = match reserved.as_bytes() {
        [name @ .., b'/'] => (name, true),
        name => (name, false),
    };
    let Some((first, rest)) = operation.as_bytes().split_at_checked(name.len()) else {
        return false;
    };
    let mut index = 0;
    while index < name.len() {
        if first[index] != name[index] {
            return false;
        }
        index += 1;
    }
    rest.is_empty() || (is_beginning && rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_s_own_names_are_reserved_and_names_like_them_are_not() {
        for name in [
            "idem.audit",
            "idem.lock",
            "idem.lock/",
            "idem.lock/disks.compact",
            "idem.step",
            "idem.step/orders/charge",
        ] {
            let row = reserved(name).unwrap();
            assert!(name.starts_with(row.name.trim_end_matches('/')), "{name}");
            assert_eq!(is_lock(name), name.starts_with("idem.lock"), "{name}");
            assert_eq!(is_step(name), name.starts_with("idem.step"), "{name}");
        }
        for name in [
            "",
            "idem",
            "idem.audits",
            "idem.audit/orders",
            "idem.loc",
            "idem.locks",
            "idem.lock.disks",
            "idem.steps/orders",
            "orders/idem.step",
        ] {
            assert!(reserved(name).is_none(), "{name}");
            assert!(!is_lock(name) && !is_step(name), "{name}");
        }
    }
}
