//! Slips of the fingers, of memory and of habit, a hundred and more: the hint must be right in nineteen of twenty.

use super::*;

/// Section, what was written, what was meant.
const TYPOS: &[(&str, &str, &str)] = &[
    ("", "stroe", "store"),
    ("", "stor", "store"),
    ("", "stores", "store"),
    ("", "storage", "store"),
    ("", "realy", "relay"),
    ("", "relays", "relay"),
    ("", "rellay", "relay"),
    ("", "admn", "admin"),
    ("", "amdin", "admin"),
    ("", "rout", "route"),
    ("", "routes", "route"),
    ("", "ruote", "route"),
    ("", "logs", "log"),
    ("", "logging", "log"),
    ("store", "ulr", "url"),
    ("store", "uri", "url"),
    ("store", "urls", "url"),
    ("store", "URL", "url"),
    ("store", "database_url", "url"),
    ("store", "tableprefix", "table_prefix"),
    ("store", "table-prefix", "table_prefix"),
    ("store", "tablePrefix", "table_prefix"),
    ("store", "prefix", "table_prefix"),
    ("store", "table_prefx", "table_prefix"),
    ("store", "shema", "schema"),
    ("store", "scheme", "schema"),
    ("store", "conections", "connections"),
    ("store", "connection", "connections"),
    ("store", "max_connections", "connections"),
    ("store", "migrations", "migrate"),
    ("store", "migarte", "migrate"),
    ("store", "auto_migrate", "migrate"),
    ("store", "nmae", "name"),
    ("relay", "lease_live", "lease_life"),
    ("relay", "lease", "lease_life"),
    ("relay", "leaselife", "lease_life"),
    ("relay", "leaseLife", "lease_life"),
    ("relay", "lease_lifetime", "lease_life"),
    ("relay", "lease_time", "lease_life"),
    ("relay", "heartbeat", "heartbeat_every"),
    ("relay", "heartbeat_interval", "heartbeat_every"),
    ("relay", "hearbeat_every", "heartbeat_every"),
    ("relay", "heart_beat_every", "heartbeat_every"),
    ("relay", "drain_timeout", "drain_deadline"),
    ("relay", "deadline", "drain_deadline"),
    ("relay", "drain-deadline", "drain_deadline"),
    ("relay", "draindeadline", "drain_deadline"),
    ("relay", "keep", "keep_delivered"),
    ("relay", "keep_deliverd", "keep_delivered"),
    ("relay", "keep_delivered_for", "keep_delivered"),
    ("relay", "purge", "purge_every"),
    ("relay", "purge_evrey", "purge_every"),
    ("relay", "purge_interval", "purge_every"),
    ("relay", "unroutet", "unrouted"),
    ("relay", "un_routed", "unrouted"),
    ("relay", "nane", "name"),
    ("log", "levle", "level"),
    ("log", "log_level", "level"),
    ("log", "fromat", "format"),
    ("log", "log_format", "format"),
    ("admin", "lsiten", "listen"),
    ("admin", "listen_address", "listen"),
    ("admin", "listen_addr", "listen"),
    ("admin", "tokn", "token"),
    ("admin", "admin_token", "token"),
    ("route", "topic", "topics"),
    ("route", "tpoics", "topics"),
    ("route", "transprt", "transport"),
    ("route", "tranport", "transport"),
    ("route", "transports", "transport"),
    ("route", "lane", "lanes"),
    ("route", "oder", "order"),
    ("route", "ordering", "order"),
    ("route", "strat", "start"),
    ("route", "start_at", "start"),
    ("route", "ondead", "on_dead"),
    ("route", "on-dead", "on_dead"),
    ("route", "rates", "rate"),
    ("route", "rate_limit", "rate"),
    ("route", "windw", "window"),
    ("route", "window_size", "window"),
    ("route", "windowbytes", "window_bytes"),
    ("route", "window_byte", "window_bytes"),
    ("route", "timeout", "publish_timeout"),
    ("route", "publish_time_out", "publish_timeout"),
    ("route", "publishTimeout", "publish_timeout"),
    ("route", "batch_size", "batch"),
    ("route", "page_size", "page"),
    ("route", "max_poll", "poll_max"),
    ("route", "poll_maximum", "poll_max"),
    ("route", "pollmin", "poll_min"),
    ("route", "settle", "settle_every"),
    ("route", "breaker_maximum", "breaker_max"),
    ("route", "retries", "retry"),
    ("route.retry", "max_attempts", "attempts_max"),
    ("route.retry", "attempts", "attempts_max"),
    ("route.retry", "back_off", "backoff"),
    ("route.retry", "jiter", "jitter"),
    ("route.retry", "facter", "factor"),
    ("route.retry", "maximum", "max"),
    ("store", "passwrd", "password"),
    ("route.http", "secrets", "secret"),
    ("route.http", "secert", "secret"),
    ("route.http", "time_out", "timeout"),
    ("route.http", "timout", "timeout"),
    ("route.http", "header", "headers"),
    ("route.http", "allow-http", "allow_http"),
    ("route.http", "port", "ports"),
    ("route.nats", "passwort", "password"),
    ("route.nats", "usr", "user"),
    ("route.nats", "tokn", "token"),
    ("route.nats", "credential", "credentials"),
    ("route.nats", "replica", "replicas"),
    ("route.rabbitmq", "exchang", "exchange"),
    ("route.rabbitmq", "ca-file", "ca_file"),
    ("route.rabbitmq", "cafile", "ca_file"),
    ("route.redis", "ca_fiel", "ca_file"),
    ("route.redis", "declared", "declare"),
    ("route.redis", "stram", "stream"),
];

/// Of those that a program without it cannot be asked for.
const KAFKA_TYPOS: &[(&str, &str, &str)] = &[
    ("route.kafka", "propertys", "properties"),
    ("route.kafka", "mechanisms", "mechanism"),
    ("route.kafka", "transaction_id", "transactional_id"),
    ("route.kafka", "pasword", "password"),
    ("route.kafka", "certificate", "certificate_file"),
];

/// A file in which the section has one key too many.
fn file(section: &str, typo: &str) -> String {
    let line = |of: &str| if of == section { format!("{typo} = 1\n") } else { String::new() };
    format!(
        "{}[store]\nurl = \"sqlite:app.db\"\n{}[relay]\n{}[log]\n{}[admin]\n{}[[route]]\nname = \"all\"\n\
         transport = \"stdout\"\n{}[route.retry]\n{}{}",
        line(""),
        line("store"),
        line("relay"),
        line("log"),
        line("admin"),
        line("route"),
        line("route.retry"),
        destination(section, &line(section))
    )
}

/// A route whose destination has a section of its own.
fn destination(section: &str, line: &str) -> String {
    let (transport, more) = match section {
        "route.http" => ("https://hooks.example.com/", "unsigned = true\n"),
        "route.nats" => ("nats://broker", ""),
        "route.rabbitmq" => ("amqp://broker", ""),
        "route.redis" => ("redis://broker", ""),
        "route.kafka" => ("kafka://broker", ""),
        _ => return String::new(),
    };
    format!("[[route]]\nname = \"other\"\ntransport = \"{transport}\"\n[{section}]\n{more}{line}")
}

#[test]
fn the_hint_is_right_for_nearly_every_typo() {
    let kafka = if cfg!(feature = "kafka") { KAFKA_TYPOS } else { &[] };
    let typos: Vec<_> = TYPOS.iter().chain(kafka).collect();
    let mut wrong = Vec::new();
    for (section, typo, meant) in &typos {
        let told = problems(&file(section, typo));
        let full = if section.is_empty() { (*typo).to_owned() } else { format!("{section}.{typo}") };
        let line = told.lines().find(|line| line.contains(&format!("`{full}` unknown key")));
        let line = line.unwrap_or_else(|| panic!("`{full}` was taken:\n{told}"));
        if !line.ends_with(&format!("did you mean `{meant}`?")) {
            wrong.push(format!("{full}: {line}"));
        }
    }
    let (all, wrong) = (typos.len(), wrong);
    assert!(wrong.len() <= all / 20, "{} of {all} hints are not right:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_key_of_another_section_is_told_where_it_belongs() {
    let told = problems(&file("store", "keep_delivered"));
    assert!(told.contains("`store.keep_delivered` unknown key; it belongs to `relay`"), "{told}");
    let told = problems(&file("relay", "attempts_max"));
    assert!(told.contains("`relay.attempts_max` unknown key; it belongs to `route.retry`"), "{told}");
}

#[test]
fn a_key_of_another_back_off_is_told_which_one_it_goes_with() {
    let shapes = [
        ("fixed", "first", "`backoff = \"exponential\"`; here it is \"fixed\", which has `wait`"),
        ("fixed", "factor", "`backoff = \"exponential\"`; here it is \"fixed\", which has `wait`"),
        (
            "fixed",
            "max",
            "`backoff = \"linear\"` or `backoff = \"exponential\"`; here it is \"fixed\", which has `wait`",
        ),
        ("linear", "first", "`backoff = \"exponential\"`; here it is \"linear\", which has `step`, `max`"),
        ("linear", "wait", "`backoff = \"fixed\"`; here it is \"linear\", which has `step`, `max`"),
        (
            "exponential",
            "wait",
            "`backoff = \"fixed\"`; here it is \"exponential\", which has `first`, `factor`, `max`",
        ),
    ];
    for (shape, key, expected) in shapes {
        let told = problems(&file("route.retry", &format!("backoff = \"{shape}\"\n{key}")));
        let mine: Vec<&str> = told.lines().filter(|line| line.contains("route.retry")).collect();
        assert_eq!(mine.len(), 1, "{told}");
        assert!(mine[0].ends_with(&format!("`route.retry.{key}` goes with {expected}")), "{told}");
    }
}
