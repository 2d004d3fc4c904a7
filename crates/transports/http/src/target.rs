//! The endpoint's URL, checked once when the publisher is built: everything about it that can be wrong is said then.

use std::{fmt, net::IpAddr};

use postrider_core::percent;
use url::{Host, Url};

use crate::guard::Guard;

/// Where requests go. Prints without path and query, which often hold a token.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
    /// The value of `Host`.
    pub(crate) authority: String,
    /// What stands in the request line.
    pub(crate) path_and_query: String,
}

/// A name to resolve, or an address, which no resolver will ever see.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum TargetHost {
    Name(String),
    Address(IpAddr),
}

impl Target {
    /// Reads a URL; otherwise one sentence for each thing that is wrong with it, without repeating it.
    pub(crate) fn parse(text: &str, guard: &Guard) -> Result<Self, Vec<String>> {
        // What a browser would mend is refused: who reads the URL must see the same host as the parser.
        let rest = text.split_once("://").map_or("", |(_, rest)| rest);
        if rest.is_empty() || rest.starts_with('/') || text.contains(|c: char| c == '\\' || c.is_whitespace()) {
            return Err(vec!["the URL is not of the form `https://host/path`".to_owned()]);
        }
        let url = Url::parse(text).map_err(|e| vec![format!("the URL cannot be read: {e}")])?;
        let mut problems = Vec::new();
        let tls = match url.scheme() {
            "https" => true,
            "http" if guard.permits_http() => false,
            "http" => {
                problems.push("the URL is plain `http`; write `https`, or allow it with `allow_http`".to_owned());
                false
            }
            other => return Err(vec![format!("the URL begins with `{other}:`; a webhook goes to `https:`")]),
        };
        if !url.username().is_empty() || url.password().is_some() {
            problems.push("the URL holds a user name or password; send it as a header instead".to_owned());
        }
        let port = url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 });
        if !guard.permits_port(port) {
            problems.push(format!("the port {port} is not allowed; allow it with `ports`"));
        }
        let host = match url.host() {
            Some(Host::Domain(name)) => TargetHost::Name(name.to_owned()),
            Some(Host::Ipv4(address)) => TargetHost::Address(address.into()),
            Some(Host::Ipv6(address)) => TargetHost::Address(address.into()),
            None => return Err(vec!["the URL names no host".to_owned()]),
        };
        if let TargetHost::Address(address) = host
            && let Err(class) = guard.check(address)
        {
            problems.push(format!("the address {address} is {}; {}", class.name(), class.remedy()));
        }
        let mut path_and_query = url.path().to_owned();
        if let Some(query) = url.query() {
            path_and_query = format!("{path_and_query}?{query}");
        }
        let shown = url.host_str().unwrap_or_default();
        let authority = url.port().map_or_else(|| shown.to_owned(), |port| format!("{shown}:{port}"));
        if problems.is_empty() { Ok(Self { tls, host, port, authority, path_and_query }) } else { Err(problems) }
    }

    /// Path and query, whole and in parts, as they were sent and as a receiver may have read them: `Cannot POST /in/3f2b…`
    /// is a usual answer, and the path may be all that a caller must know.
    pub(crate) fn echoes(&self) -> Vec<String> {
        let (path, query) = self.path_and_query.split_once('?').unwrap_or((&self.path_and_query, ""));
        let pairs = query.split('&').flat_map(|pair| [pair, pair.split_once('=').map_or("", |(_, value)| value)]);
        let whole = [self.path_and_query.as_str(), path, query];
        let sent: Vec<&str> = whole.into_iter().chain(path.split('/')).chain(pairs).collect();
        let read = sent.iter().filter_map(|part| percent::decode(part));
        read.chain(sent.iter().map(|part| (*part).to_owned())).collect()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let target = Target::parse("https://Hooks.Example.com/in?k=v#part", &Guard::default()).unwrap();
        assert_eq!((target.tls, target.port), (true, 443));
        assert_eq!(target.authority, "hooks.example.com");
        assert_eq!(target.path_and_query, "/in?k=v");
        assert_eq!(format!("{target:?}"), "https://hooks.example.com", "a token in the path does not print");
        let odd = Guard::default().allow_port(8443);
        assert_eq!(Target::parse("https://[2606:4700::1]:8443", &odd).unwrap().authority, "[2606:4700::1]:8443");
    }

    #[test]
    fn what_a_receiver_may_repeat_is_known() {
        let target = Target::parse("https://h.example.com/in/t%20k?key=a%2Fb&flag", &Guard::default()).unwrap();
        let echoes = target.echoes();
        for part in
            ["/in/t%20k?key=a%2Fb&flag", "/in/t%20k", "/in/t k", "t%20k", "t k", "key=a/b", "a%2Fb", "a/b", "flag"]
        {
            assert!(echoes.iter().any(|echo| echo == part), "{part} in {echoes:?}");
        }
    }

    /// Everything that must not be an endpoint, however it is written.
    #[test]
    fn hostile_urls_are_refused() {
        let hostile = [
            "",
            "hooks",
            "//hooks.example.com/",
            "ftp://hooks.example.com/",
            "file:///etc/passwd",
            "gopher://h/",
            "javascript:alert(1)",
            "data:text/plain,x",
            "unix:/run/docker.sock",
            "https://",
            "https:///path",
            "http://hooks.example.com/",
            "https://user@hooks.example.com/",
            "https://user:pw@hooks.example.com/",
            "https://hooks.example.com:22/",
            "https://hooks.example.com:80/",
            "https://hooks.example.com:6379/",
            "https://hooks.example.com:8443/",
            "https://hooks.example.com:0/",
            "https://hooks.example.com:99999/",
            "https://hooks.example.com@127.0.0.1/",
            "https://127.0.0.1/",
            "https://127.1/",
            "https://127.0.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0x7f.1/",
            "https://0177.0.0.1/",
            "https://0/",
            "https://0.0.0.0/",
            "https://localhost:8080/",
            "https://[::1]/",
            "https://[::]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://[::127.0.0.1]/",
            "https://[64:ff9b::7f00:1]/",
            "https://[2002:7f00:1::]/",
            "https://[fe80::1]/",
            "https://[fe80::1%25eth0]/",
            "https://[fd00:ec2::254]/",
            "https://[fc00::1]/",
            "https://[ff02::1]/",
            "https://[2001:db8::1]/",
            "https://[2001::1]/",
            "https://10.0.0.1/",
            "https://172.16.0.1/",
            "https://172.31.255.255/",
            "https://192.168.0.1/",
            "https://192.168.257/",
            "https://100.64.0.1/",
            "https://169.254.169.254/latest/meta-data/",
            "https://0xa9fea9fe/",
            "https://2852039166/",
            "https://168.63.129.16/",
            "https://192.0.0.192/",
            "https://198.18.0.1/",
            "https://203.0.113.7/",
            "https://224.0.0.1/",
            "https://255.255.255.255/",
            "https://１２７.０.０.１/",
            "https://127。0。0。1/",
            "https://127.0.0.1./",
            "https://①②⑦.⓪.⓪.①/",
            "https://%31%32%37.0.0.1/",
            "https://[::1",
            "https://a b/",
            "https://\u{0}/",
            "https:\\\\127.0.0.1\\",
        ];
        assert!(hostile.len() >= 60, "{}", hostile.len());
        for url in hostile {
            assert!(Target::parse(url, &Guard::default()).is_err(), "{url} must be refused");
        }
    }

    #[test]
    fn a_refusal_says_all_and_repeats_no_password() {
        let problems = Target::parse("http://me:canary@10.0.0.1:8080/", &Guard::default()).unwrap_err();
        let told = problems.join("; ");
        assert_eq!(problems.len(), 4, "{told}");
        for word in ["allow_http", "user name", "8080", "10.0.0.1 is private"] {
            assert!(told.contains(word), "{word} in {told}");
        }
        assert!(!told.contains("canary"), "{told}");
    }
}
