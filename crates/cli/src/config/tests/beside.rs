//! What is said beside the file: in the environment and on the command line.

use std::{ffi::OsString, fs};

use super::*;
use crate::config::{
    secret::Place,
    show::{self, Origin},
};

const TWO: &str = "[store]\nurl = \"sqlite:app.db\"\n[[route]]\nname = \"billing\"\ntransport = \"stdout\"\nrate = 5\n\
                   [[route]]\nname = \"audit.log-2\"\ntransport = \"discard\"\n";

fn with(text: &str, environment: &[(&str, &str)], set: &[&str]) -> Result<Loaded, String> {
    load(text, environment, set, false)
}

fn load(text: &str, environment: &[(&str, &str)], set: &[&str], look_up: bool) -> Result<Loaded, String> {
    let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let set: Vec<String> = set.iter().map(|given| (*given).to_owned()).collect();
    let overrides = Overrides::gather(environment, &set)?;
    parse(text, &overrides, look_up)
        .map_err(|problems| Problems { file: "p.toml", problems: &problems }.to_string().trim_start().to_owned())
}

fn refused(text: &str, environment: &[(&str, &str)], set: &[&str]) -> String {
    with(text, environment, set).err().expect("refused")
}

#[test]
fn a_flag_goes_before_the_environment_and_that_before_the_file() {
    let rate = |environment: &[(&str, &str)], set: &[&str]| {
        let loaded = with(TWO, environment, set).unwrap();
        let shown = loaded.shown.iter().find(|value| value.key.path == "route.rate").unwrap();
        (loaded.config.routes[0].rate, shown.origin.clone())
    };
    let env = [("POSTRIDER__ROUTE__BILLING__RATE", "10")];
    assert_eq!(rate(&[], &[]), (Some(5), Origin::File { line: 6 }));
    assert_eq!(rate(&env, &[]), (Some(10), Origin::Given("env POSTRIDER__ROUTE__BILLING__RATE".to_owned())));
    assert_eq!(
        rate(&env, &["route.billing.rate=20"]),
        (Some(20), Origin::Given("--set route.billing.rate".to_owned()))
    );
}

#[test]
fn every_kind_of_value_can_be_said() {
    let loaded = with(
        TWO,
        &[
            ("POSTRIDER__STORE__MIGRATE", "false"),
            ("POSTRIDER__RELAY__LEASE_LIFE", "3s"),
            ("POSTRIDER__LOG__LEVEL", "debug"),
            ("POSTRIDER__ADMIN__LISTEN", "127.0.0.1:1234"),
            ("POSTRIDER__ADMIN__TOKEN__FILE", "mounted/token"),
            ("POSTRIDER__ROUTE__AUDIT_LOG_2__TOPICS", "orders.*, refunds.**"),
            ("POSTRIDER__ROUTE__AUDIT_LOG_2__RETRY__FACTOR", "3"),
            ("POSTRIDER__ROUTE__BILLING__TRANSPORT", "https://hooks.example.com/"),
            ("POSTRIDER__ROUTE__BILLING__HTTP__SECRET", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
            ("POSTRIDER__ROUTE__BILLING__HTTP__PORTS", "8443,9443"),
            ("POSTRIDER__ROUTE__BILLING__HTTP__HEADERS__X_API_KEY", "canary"),
            ("POSTRIDER_OF_SOMEBODY_ELSE", "x"),
        ],
        &[],
    )
    .unwrap();
    let config = &loaded.config;
    assert_eq!((config.stores[0].migrate, config.log.level), (false, "debug"));
    assert_eq!(config.relay.options.lease_life, Duration::from_secs(3));
    let admin = config.admin.as_ref().unwrap();
    assert_eq!((admin.listen.port(), format!("{:?}", admin.token)), (1234, "Some(file mounted/token)".to_owned()));
    assert_eq!(config.routes[1].topics, ["orders.*", "refunds.**"]);
    let http = config.routes[0].http.as_ref().unwrap();
    assert_eq!((http.headers[0].0.as_str(), http.secrets.len()), ("x-api-key", 1));
    let text = show::as_text("p.toml", &loaded.shown);
    assert!(!text.contains("canary") && !text.contains("C2FV"), "{text}");
    assert!(text.contains("headers = { x-api-key = \"(hidden)\" }"), "{text}");
    assert!(text.contains("token = { file = \"mounted/token\" }"), "{text}");
    assert!(text.contains("# env POSTRIDER__ROUTE__BILLING__HTTP__PORTS"), "{text}");
    let read_again: toml::Table = text.parse().unwrap();
    assert_eq!(read_again["relay"]["lease_life"].as_str(), Some("3s"));
}

#[test]
fn what_is_wrong_beside_the_file_is_told_by_its_name() {
    for (name, value, told) in [
        ("POSTRIDER__STORE__URLL", "x", "env POSTRIDER__STORE__URLL: `store.urll` unknown key; did you mean `url`?"),
        ("POSTRIDER__RELAYS__NAME", "x", "env POSTRIDER__RELAYS__NAME: `relays` unknown key; did you mean `relay`?"),
        (
            "POSTRIDER__ROUTE__BILLING__RATE",
            "many",
            "env POSTRIDER__ROUTE__BILLING__RATE: `route.rate` must be a whole number",
        ),
        ("POSTRIDER__ROUTE__BILLING__RATE", "0", "env POSTRIDER__ROUTE__BILLING__RATE: `route.rate` is 0"),
        (
            "POSTRIDER__ROUTE__BILING__RATE",
            "1",
            "there is no `[[route]]` named `biling`; there are billing, audit.log-2",
        ),
        ("POSTRIDER__ROUTE__BILLING", "1", "names a section and no key of it"),
        ("POSTRIDER__RELAY__LEASE_LIFE__X", "1", "`relay.lease_life` is a value and has no keys of its own"),
        ("POSTRIDER__RELAY", "1", "env POSTRIDER__RELAY: `relay` must be a table"),
        ("POSTRIDER__STORE__URL", "", "env POSTRIDER__STORE__URL: `store.url` is empty; say where the messages are"),
        ("POSTRIDER__STORE__URL", "oracle:canary", "env POSTRIDER__STORE__URL: `store.url` `oracle:` is not a store"),
    ] {
        let found = refused(TWO, &[(name, value)], &[]);
        assert!(found.contains(told) && !found.contains("canary"), "{name}={value}: {found}");
    }
    assert!(refused(TWO, &[], &["route.billing.rate"]).contains("is not `key=value`"));
    let twins = TWO.replace("audit.log-2", "Billing_");
    let found = refused(&twins, &[("POSTRIDER__ROUTE__BILLING__RATE", "1")], &[]);
    assert!(found.contains("more than one `[[route]]` is meant by `billing`"), "{found}");
}

#[test]
fn a_command_line_is_no_place_for_a_secret() {
    let hook = TWO.replace("\"stdout\"", "\"https://hooks.example.com/\"\nhttp = { unsigned = true }");
    for key in ["admin.token", "route.billing.http.secret", "route.billing.http.headers.x", "admin.token.value"] {
        let found = refused(&hook, &[], &[&format!("{key}=canary")]);
        assert!(found.contains("everybody can see a command line") && !found.contains("canary"), "{key}: {found}");
    }
    assert!(with(&hook, &[], &["admin.token.file=mounted/token"]).is_ok());
    for url in ["postgres://u:canary@h/d", "postgres://h/d?user=u&password=canary"] {
        for key in ["store.url", "store.url.value"] {
            let found = refused(TWO, &[], &[&format!("{key}={url}")]);
            assert!(found.contains("everybody can see a command line") && !found.contains("canary"), "{key}: {found}");
        }
    }
    for harmless in ["store.url=postgres://u@h/d", "store.url=sqlite:other.db", "store.url.file=mounted/url"] {
        assert!(with(TWO, &[], &[harmless]).is_ok(), "{harmless}");
    }
}

#[test]
fn where_the_url_of_a_store_stands_can_be_said_in_the_environment() {
    for (name, value, place) in [
        ("POSTRIDER__STORE__URL__FILE", "mounted/url", Place::File("mounted/url".into())),
        ("POSTRIDER__STORE__URL__ENV", "SHOP_URL", Place::Env("SHOP_URL".into())),
    ] {
        let loaded = with(TWO, &[(name, value)], &[]).unwrap();
        assert_eq!(loaded.config.stores[0].url, place, "{name}");
        let text = show::as_text("p.toml", &loaded.shown);
        assert!(text.contains(value) && text.contains(&format!("# env {name}")), "{text}");
    }
}

#[test]
fn a_secret_that_was_changed_where_it_stands_has_another_fingerprint() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let text = format!("{TWO}[admin]\ntoken = {{ file = \"{}\" }}\n", file.display());
    let fingerprint = |token: &str| {
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let loaded = load(&text, &[], &[], true).unwrap();
        loaded.shown.iter().find(|value| value.key.path == "admin.token").unwrap().fingerprint
    };
    let first = fingerprint("0123456789abcdef");
    assert_ne!(fingerprint("fedcba9876543210"), first);
    assert_eq!(fingerprint("0123456789abcdef"), first, "and the same one has the same");
}

#[test]
fn the_database_url_counts_if_nothing_else_says_where_the_store_is() {
    let url = [("DATABASE_URL", "postgresql://u:canary@localhost/d")];
    let without = &TWO[TWO.find("[[route]]").unwrap()..];
    let loaded = with(without, &url, &[]).unwrap();
    assert_eq!(loaded.config.stores[0].find().unwrap().1.path, "//u:canary@localhost/d");
    let text = show::as_text("p.toml", &loaded.shown);
    assert!(text.contains("# env DATABASE_URL") && !text.contains("canary"), "{text}");
    assert_eq!(
        with(TWO, &url, &[]).unwrap().config.stores[0].url,
        Place::Value("sqlite:app.db".into()),
        "the file has one"
    );
    let both = [url[0], ("POSTRIDER__STORE__URL", "sqlite:other.db")];
    assert_eq!(with(without, &both, &[]).unwrap().config.stores[0].url, Place::Value("sqlite:other.db".into()));
    assert!(refused(without, &[("DATABASE_URL", "")], &[]).contains("`store` missing"));
    assert!(
        refused(without, &[("DATABASE_URL", "oracle://x")], &[]).starts_with("env DATABASE_URL: `store.url` `oracle:`")
    );
}

#[test]
fn an_override_of_one_of_several_stores_names_it() {
    let several = "[[store]]\nname = \"shop\"\nurl = \"sqlite:a\"\n[[store]]\nname = \"stock\"\n[[route]]\nname = \"a\"\n\
                   store = \"shop\"\ntransport = \"discard\"\n[[route]]\nname = \"b\"\nstore = \"stock\"\ntransport = \"discard\"\n";
    let set = [("POSTRIDER__STORE__STOCK__URL", "sqlite:b"), ("DATABASE_URL", "sqlite:c")];
    let loaded = with(several, &set, &[]).unwrap();
    let urls: Vec<String> = loaded.config.stores.iter().map(|store| store.url.get().unwrap()).collect();
    assert_eq!(urls, ["sqlite:a", "sqlite:b"]);
    let read_again: toml::Table = show::as_text("p.toml", &loaded.shown).parse().unwrap();
    assert_eq!(read_again["store"][1]["url"].as_str(), Some("sqlite:b"));
}

#[test]
fn programs_get_every_value_with_its_origin() {
    let loaded = with(TWO, &[("POSTRIDER__ROUTE__BILLING__RATE", "10")], &["relay.name=east"]).unwrap();
    let object = show::as_object("p.toml", &loaded.shown);
    let of = |key: &str, name: Option<&str>| {
        let values = object["values"].as_array().unwrap();
        let found = values.iter().find(|value| value["key"] == key && value["name"].as_str() == name);
        found.unwrap_or_else(|| panic!("{key} of {name:?} in {object}")).clone()
    };
    let rate = of("route.rate", Some("billing"));
    assert_eq!((rate["value"].as_i64(), rate["reloadable"].as_bool()), (Some(10), Some(true)));
    assert_eq!(rate["origin"]["name"], "POSTRIDER__ROUTE__BILLING__RATE");
    assert_eq!(of("route.transport", Some("audit.log-2"))["origin"]["line"], 9);
    assert_eq!(of("route.lanes", Some("audit.log-2"))["origin"]["kind"], "default");
    assert_eq!(of("relay.name", None)["origin"]["kind"], "flag");
    assert_eq!(of("relay.heartbeat_every", None)["value"], "3s");
}

#[test]
fn the_url_of_a_store_may_be_given_like_a_secret_and_so_may_its_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let (url, password) = (file("url", "postgres://relay:canary@localhost/shop\n"), file("password", "can/ry@1\n"));
    let several = |shop: &str, stock: &str| {
        format!(
            "[[store]]\nname = \"shop\"\n{shop}\n[[store]]\nname = \"stock\"\n{stock}\n[[route]]\nname = \"a\"\n\
             store = \"shop\"\ntransport = \"discard\"\n[[route]]\nname = \"b\"\nstore = \"stock\"\ntransport = \"discard\"\n"
        )
    };
    let text = several(
        &format!("url = {{ file = \"{url}\" }}"),
        &format!("url = \"mysql://relay@localhost/stock\"\npassword = {{ file = \"{password}\" }}"),
    );
    let loaded = load(&text, &[], &[], true).unwrap();
    let paths: Vec<String> = loaded.config.stores.iter().map(|store| store.find().unwrap().1.path).collect();
    assert_eq!(paths, ["//relay:canary@localhost/shop", "//relay:can%2Fry%401@localhost/stock"]);
    let shown = format!("{}{:?}", show::as_text("p.toml", &loaded.shown), loaded.config.stores);
    assert!(shown.contains(&url) && shown.contains(&password), "where they are may be seen: {shown}");
    assert!(!shown.contains("canary") && !shown.contains("can/ry") && !shown.contains("can%2F"), "{shown}");

    let broken = file("broken", "oracle://me:canary@h/d");
    let fine = "url = \"sqlite:a\"";
    for (shop, what) in [
        (format!("url = {{ file = \"{broken}\" }}"), "p.toml:3: `store.url` `oracle:` is not a store"),
        ("url = { env = \"NO_SUCH_VARIABLE\" }".to_owned(), "p.toml:3: `store.url` the variable"),
        ("url = { fiel = \"canary\" }".to_owned(), "p.toml:3: `store.url` unknown key `fiel`; did you mean `file`?"),
        (
            "url = \"postgres://h/d\"\npassword = \"canary\"".to_owned(),
            "p.toml:4: `store.password` is given, but the URL names no user",
        ),
        (
            "url = \"postgres://u:canary@h/d\"\npassword = \"canary\"".to_owned(),
            "p.toml:4: `store.password` is given, but the URL has one too",
        ),
        (
            "url = \"sqlite:b\"\npassword = \"canary\"".to_owned(),
            "p.toml:4: `store.password` is given, but the URL names no user",
        ),
    ] {
        let told = load(&several(&shop, fine), &[], &[], true).err().expect("refused");
        assert!(told.contains(what) && !told.contains("canary"), "{shop}: {told}");
    }
    let hidden = refused(&several(fine, "url = \"sqlite:c\""), &[], &["store.shop.password=canary"]);
    assert!(hidden.contains("is a secret") && !hidden.contains("canary"), "{hidden}");
}
