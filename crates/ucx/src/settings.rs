//! Which transports and devices UCX may use.

/// What UCX is told beyond its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transports(pub(crate) Vec<(&'static str, &'static str)>);

/// Transports that move data by the hands of the two processes, or of one, and that reach nobody outside this host when their device is the loopback.
const LOCAL: [&str; 9] = ["self", "sm", "shm", "mm", "posix", "sysv", "cma", "xpmem", "tcp"];

/// What a job on one host uses. Not `tcp`, which listens on a port. Not `cma`, which `shm` includes: half a round trip of 16 MiB takes 1.9 to 4.0 ms
/// with it and 0.7 to 1.9 ms without (UCX 1.13, three runs on two cores), and containers often forbid it.
const SHARED_MEMORY: &str = "self,posix,sysv";

impl Transports {
    /// A job on one host keeps to shared memory and the loopback, unless the user has decided otherwise.
    ///
    /// `transports` and `devices` are `UCX_TLS` and `UCX_NET_DEVICES`. With transports that need a network device (`rc`, `all`) UCX chooses among
    /// all devices.
    pub(crate) fn choose(one_host: bool, transports: Option<&str>, devices: Option<&str>) -> Transports {
        let mut set = Vec::new();
        if one_host && devices.is_none() {
            match transports {
                None => set.extend([("TLS", SHARED_MEMORY), ("NET_DEVICES", "lo")]),
                Some(list) if list.split(',').all(|name| LOCAL.contains(&name.trim())) => {
                    set.push(("NET_DEVICES", "lo"))
                }
                Some(_) => {}
            }
        }
        Transports(set)
    }

    /// Whether nothing moves any more to a process that is gone: no device does it by itself.
    pub(crate) fn are_local(&self, transports: Option<&str>) -> bool {
        self.0.iter().any(|(name, _)| *name == "TLS")
            || transports.is_some_and(|list| list.split(',').all(|name| LOCAL.contains(&name.trim())))
    }

    pub(crate) fn from_env(one_host: bool) -> Transports {
        Transports::choose(one_host, read("UCX_TLS").as_deref(), read("UCX_NET_DEVICES").as_deref())
    }
}

/// A variable of the environment.
pub(crate) fn read(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_stays_on_itself_unless_told_otherwise() {
        let chosen = |one_host, tls, devices| Transports::choose(one_host, tls, devices).0;
        let loopback = ("NET_DEVICES", "lo");
        assert_eq!(chosen(true, None, None), [("TLS", SHARED_MEMORY), loopback]);
        assert_eq!(chosen(true, Some("tcp"), None), [loopback]);
        assert_eq!(chosen(true, Some("shm, self"), None), [loopback]);
        for (one_host, tls, devices) in [
            (true, Some("rc,self"), None),
            (true, Some("^cma"), None),
            (true, None, Some("eth0")),
            (true, Some("tcp"), Some("all")),
            (false, None, None),
            (false, Some("tcp"), None),
        ] {
            assert_eq!(chosen(one_host, tls, devices), [], "{one_host} {tls:?} {devices:?}");
        }
        let local = |tls| Transports::choose(true, tls, None).are_local(tls);
        assert!(local(None) && local(Some("shm,self")) && local(Some("tcp")));
        assert!(
            !local(Some("rc,shm")) && !local(Some("all")) && !Transports::choose(false, None, None).are_local(None)
        );
    }
}
