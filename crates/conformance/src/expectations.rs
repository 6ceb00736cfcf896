//! What each known backend has promised, kept apart from what its table says: a table that shrinks must not turn failures
//! into "unsupported".

use crate::case::{Case, Level};

/// A backend of this workspace and the cases that it may answer with "unsupported".
struct Promise {
    backend: &'static str,
    may_lack: &'static [&'static str],
}

const PROMISES: &[Promise] = &[Promise { backend: "shm", may_lack: &[] }];

/// Why an "unsupported" from this backend is a failure, if it is.
pub(crate) fn broken_promise(backend: &str, case: &Case) -> Option<String> {
    let base = backend.split('+').next().unwrap_or(backend);
    match PROMISES.iter().find(|promise| promise.backend == base) {
        Some(promise) if !promise.may_lack.contains(&case.id) => Some(format!("{base} has promised this case")),
        // Of other people's backends only the capability level may be lacking at all.
        None if case.level == Level::Must && case.needs.is_empty() => Some("every backend must offer this".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn promises_name_cases_that_exist() {
        for promise in PROMISES {
            for id in promise.may_lack {
                assert!(cases::find(id).is_some(), "{}: {id}", promise.backend);
            }
        }
        let case = cases::find("AR-1").unwrap();
        assert!(broken_promise("shm", &case).is_some());
        assert!(broken_promise("shm+some-mutant", &case).is_some());
        assert!(broken_promise("somebody-elses", &case).is_none());
    }
}
