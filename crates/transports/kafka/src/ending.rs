//! A client that ends on a thread of its own, whoever was the last to use it.
//!
//! Ending a client waits for its threads, and for a group to be left, and only the client knows for how long. A task must not
//! block for that, and a runtime that ends waits for its blocking calls; so neither of them is what ends a client.

use std::{ops::Deref, thread};

use tokio::sync::watch;

/// A client, until the last one drops it.
pub(crate) struct Ending<T: Send + 'static> {
    client: Option<T>,
    /// Goes when the client has ended.
    over: Option<watch::Sender<()>>,
}

/// What the end of a client is waited for by.
#[derive(Clone)]
pub(crate) struct End(watch::Receiver<()>);

impl<T: Send + 'static> Ending<T> {
    pub(crate) fn new(client: T) -> Self {
        Self { client: Some(client), over: Some(watch::Sender::new(())) }
    }

    pub(crate) fn end(&self) -> End {
        End(self.over.as_ref().expect("it is there until this is dropped").subscribe())
    }
}

impl End {
    /// Waits until the client has ended. If the future is dropped, it ends all the same.
    pub(crate) async fn wait(mut self) {
        // Nothing is ever sent: what comes is that there is nobody any more who could.
        while self.0.changed().await.is_ok() {}
    }
}

impl<T: Send + 'static> Deref for Ending<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.client.as_ref().expect("it is there until this is dropped")
    }
}

impl<T: Send + 'static> Drop for Ending<T> {
    fn drop(&mut self) {
        let (client, over) = (self.client.take(), self.over.take());
        let end = move || {
            drop(client);
            drop(over);
        };
        // If there is no thread to be had, it ends here and now.
        drop(thread::Builder::new().name("kafka-ending".to_owned()).spawn(end));
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// Ends when it is told to.
    struct Slow(mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_client_that_ends_but_those_who_want_to() {
        let (release, held) = mpsc::channel();
        let client = Ending::new(Slow(held));
        let end = client.end();
        drop(client);
        let waited = tokio::time::timeout(Duration::from_millis(20), end.clone().wait()).await;
        assert!(waited.is_err(), "it has not ended");
        release.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(60), end.wait()).await.expect("it has ended");
    }
}
