//! What all handles of this process on one store have in common: the open stream and what it had, who waits for it, how far the
//! server is known to be, and how its clock goes.
//!
//! Every open stream makes the server go through its history once more, so two handles on the same store, such as that of an
//! application and that of a relay beside it, must not have one each. Handles are on the same store if they name the same hosts,
//! database and prefix and log in as the same user: what one may read, the other may. It ends with the last of them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use mongodb::options::{ClientOptions, Tls};

use crate::{clock::Pace, dialect::Mongo, recent::Recent, seen::Seen, wake::Waker};

/// What is shared.
pub(crate) struct Shared {
    pub(crate) recent: Recent,
    pub(crate) waker: Waker,
    pub(crate) seen: Arc<Seen>,
    pub(crate) pace: Pace,
}

/// Which store it is, and who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    hosts: Vec<String>,
    user: Option<(Option<String>, Option<String>)>,
    certificate: Option<std::path::PathBuf>,
    database: String,
    prefix: String,
}

impl Key {
    fn new(options: &ClientOptions, names: &Mongo) -> Self {
        let mut hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        hosts.sort();
        let user = options.credential.as_ref().map(|login| (login.username.clone(), login.source.clone()));
        let certificate = match &options.tls {
            Some(Tls::Enabled(tls)) => tls.cert_key_file_path.clone(),
            _ => None,
        };
        let (database, prefix) = (names.database().to_owned(), names.prefix().to_owned());
        Self { hosts, user, certificate, database, prefix }
    }
}

/// By store. What nobody has any more is dropped with the next opening.
static STORES: LazyLock<Mutex<HashMap<Key, Weak<Shared>>>> = LazyLock::new(Mutex::default);

impl Shared {
    /// That of the handles that are there, or a new one.
    pub(crate) fn of(options: &ClientOptions, names: &Mongo) -> Arc<Self> {
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|_, shared| shared.strong_count() > 0);
        let key = Key::new(options, names);
        if let Some(shared) = stores.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        let (recent, waker, seen, pace) = (Recent::default(), Waker::new(), Arc::default(), Pace::default());
        let shared = Arc::new(Self { recent, waker, seen, pace });
        stores.insert(key, Arc::downgrade(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_handles_on_the_same_store_share() {
        let of = async |url: &str, prefix: &str| {
            let options = ClientOptions::parse(url).await.unwrap();
            Shared::of(&options, &Mongo::with_prefix("shared_by_a_test", prefix).unwrap())
        };
        let one = of("mongodb://a:27017,b/x", "p_").await;
        let same = of("mongodb://b:27017,a/y?w=1", "p_").await;
        assert!(Arc::ptr_eq(&one, &same));
        for (url, prefix) in [("mongodb://a/x", "p_"), ("mongodb://a,b/x", "q_"), ("mongodb://u:secret@a,b/x", "p_")] {
            assert!(!Arc::ptr_eq(&one, &of(url, prefix).await), "{url}");
        }
        let weak = Arc::downgrade(&one);
        drop((one, same));
        assert!(weak.upgrade().is_none(), "it ends with the last handle");
    }
}
