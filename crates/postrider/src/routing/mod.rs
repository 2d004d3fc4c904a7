//! Which topic a message goes under, where its type does not say: explicit mappings, naming conventions, a default.
//!
//! Topics decide which routes carry a message, and transports make subjects, streams and Kafka topics of them. A message type
//! may say its own ([`Message::topic`](crate::Message::topic)). Where topics are rather a matter of the whole application, an
//! [`Outbox`](crate::Outbox::with_router) is given a [`Router`]: [`Topics`], which is rules, or a function of one's own. What a
//! single call says ([`Enqueue::topic`](crate::Enqueue::topic)) goes before all of it. Where one destination has names of its
//! own, its [`Route`](crate::Route::router) is given one instead: the log keeps the topics, and only that destination sees
//! others.
//!
//! Conventions are about the *logical* name of a message type, never about the Rust type: renaming a type moves nothing.

mod redirect;

use std::collections::BTreeMap;

use postrider_core::{Error, Result, topic::check_name};

pub(crate) use redirect::Redirect;

/// What a router knows of a message.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct About<'a> {
    /// The logical name of its type.
    pub name: &'a str,
    /// The topic that the message says itself. The name, if it says none.
    pub topic: &'a str,
    /// The ordering key that the message says itself: a value, such as the number of a customer.
    pub key: Option<&'a str>,
}

/// Decides on topic and ordering key of every message of an outbox, or on the topics of a route's destination.
///
/// A function from [`About`] to a topic is one:
///
/// ```
/// use postrider::{Outbox, routing::About};
/// let by_area = |about: &About<'_>| about.name.split_once('.').map(|(area, _)| format!("shop.{area}"));
/// let outbox = Outbox::new(()).with_router(by_area);
/// # drop(outbox);
/// ```
pub trait Router: Send + Sync {
    /// The topic. `None`: what the message says itself.
    fn topic(&self, about: &About<'_>) -> Option<String>;

    /// The ordering key. `None`: what the message says itself, also if that is none. Asked for when a message is enqueued;
    /// on its way to a destination its key is what it is.
    fn key(&self, about: &About<'_>) -> Option<String> {
        let _ = about;
        None
    }
}

impl<F: Fn(&About<'_>) -> Option<String> + Send + Sync> Router for F {
    fn topic(&self, about: &About<'_>) -> Option<String> {
        self(about)
    }
}

/// How a topic is made of a logical name, such as `order.placed` or `OrderPlaced`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// As it is: the type name.
    #[default]
    TypeName,
    /// `order-placed`.
    Kebab,
    /// `order_placed`.
    Snake,
}

impl Naming {
    /// The topic for a name.
    #[must_use]
    pub fn apply(self, name: &str) -> String {
        match self {
            Self::TypeName => name.to_owned(),
            Self::Kebab => words(name).join("-"),
            Self::Snake => words(name).join("_"),
        }
    }
}

/// The words of a name in lower case: between what is neither letter nor digit, and where capitals begin a word.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let letters: Vec<char> = name.chars().collect();
    for (at, &letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| letters[at]);
        let follows = letters.get(at + 1);
        // `OrderPlaced`, and `HTTPRequest`, whose first word is `http`.
        let begins = letter.is_uppercase()
            && (before.is_some_and(|before| before.is_lowercase() || before.is_numeric())
                || (before.is_some_and(char::is_uppercase) && follows.is_some_and(|next| next.is_lowercase())));
        if (begins || !letter.is_alphanumeric()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Rules for topics. The first that applies decides:
///
/// 1. what [`Self::map`] says of the type,
/// 2. what the message says itself, if that is not just its name,
/// 3. [`Self::fallback`], if there is one, for everything that is not mapped,
/// 4. the [naming convention](Self::naming), by default the name as it is.
///
/// What 3 and 4 give stands behind the [prefix](Self::prefix).
///
/// ```
/// use postrider::{Outbox, routing::{Naming, Topics}};
/// let topics = Topics::new().map("order.placed", "orders").naming(Naming::Kebab).prefix("shop.").check()?;
/// let outbox = Outbox::new(()).with_router(topics);
/// # drop(outbox);
/// # Ok::<(), postrider::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Topics {
    map: BTreeMap<String, String>,
    naming: Naming,
    prefix: String,
    fallback: Option<String>,
}

impl Topics {
    /// No rules: every message goes under its own topic, or its name.
    pub fn new() -> Self {
        Self::default()
    }

    /// Messages of this name go under this topic, whatever they say themselves.
    pub fn map(mut self, name: &str, topic: &str) -> Self {
        self.map.insert(name.to_owned(), topic.to_owned());
        self
    }

    /// As [`Self::map`], for a type.
    pub fn map_type<M: crate::Message>(self, topic: &str) -> Self {
        self.map(M::NAME, topic)
    }

    /// How names become topics. Default: they are the topics.
    pub fn naming(mut self, naming: Naming) -> Self {
        self.naming = naming;
        self
    }

    /// What topics begin with that come from a convention or the fallback. Default: nothing.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// One topic for everything that is not mapped and says none itself, instead of a convention. Default: none.
    pub fn fallback(mut self, topic: &str) -> Self {
        self.fallback = Some(topic.to_owned());
        self
    }

    /// Looks at the rules now, so that a bad one is not found with the first message.
    ///
    /// # Errors
    /// [`Invalid`](postrider_core::ErrorKind::Invalid) if a topic in them is none.
    pub fn check(self) -> Result<Self> {
        for (name, topic) in &self.map {
            check_name("name", name)?;
            check_name("topic", topic)?;
        }
        let some = self.fallback.as_deref().unwrap_or("name");
        check_name("topic", &format!("{}{some}", self.prefix))
            .map_err(|e| Error::invalid("the prefix or the fallback of topics is none").caused_by(e))?;
        Ok(self)
    }

    /// The topic for a message.
    #[must_use]
    pub fn of(&self, name: &str, own: &str) -> String {
        if let Some(topic) = self.map.get(name) {
            return topic.clone();
        }
        if own != name {
            return own.to_owned();
        }
        let made = self.fallback.clone().unwrap_or_else(|| self.naming.apply(name));
        format!("{}{made}", self.prefix)
    }
}

impl Router for Topics {
    fn topic(&self, about: &About<'_>) -> Option<String> {
        Some(self.of(about.name, about.topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_topics_by_convention() {
        for (name, kebab, snake) in [
            ("order.placed", "order-placed", "order_placed"),
            ("OrderPlaced", "order-placed", "order_placed"),
            ("HTTPRequestV2Failed", "http-request-v2-failed", "http_request_v2_failed"),
            ("shop:order_placed/v1", "shop-order-placed-v1", "shop_order_placed_v1"),
            ("ping", "ping", "ping"),
        ] {
            assert_eq!(Naming::Kebab.apply(name), kebab);
            assert_eq!(Naming::Snake.apply(name), snake);
            assert_eq!(Naming::TypeName.apply(name), name);
        }
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        let topics = Topics::new().map("order.placed", "orders").naming(Naming::Kebab).prefix("shop.");
        assert_eq!(topics.of("order.placed", "its.own"), "orders", "explicit");
        assert_eq!(topics.of("order.paid", "its.own"), "its.own", "the message itself");
        assert_eq!(topics.of("order.paid", "order.paid"), "shop.order-paid", "the convention");
        let topics = topics.fallback("outbox-messages");
        assert_eq!(topics.of("order.paid", "order.paid"), "shop.outbox-messages", "the fallback");
        assert_eq!(topics.of("order.placed", "order.placed"), "orders");
        assert_eq!(Topics::new().of("order.paid", "order.paid"), "order.paid");
    }

    #[test]
    fn a_rule_that_names_no_topic_is_refused() {
        assert!(Topics::new().map("a", "b").prefix("shop.").fallback("rest").check().is_ok());
        for bad in [
            Topics::new().map("a", "b c"),
            Topics::new().map("", "b"),
            Topics::new().prefix("a b."),
            Topics::new().fallback(""),
        ] {
            assert!(bad.check().is_err());
        }
    }
}
