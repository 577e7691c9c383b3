//! Variables that change what NIXL and the libraries below it do.

use std::ffi::OsString;

use super::finding::Finding;

const ABOUT: &str = "environment";
const PREFIXES: [&str; 3] = ["NIXL_", "UCX_", "FI_"];

pub fn look(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<Finding> {
    let text = |(name, value): (OsString, OsString)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    };
    let mut said: Vec<_> = variables
        .map(text)
        .filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    said.sort();
    if said.is_empty() {
        return vec![Finding::ok(ABOUT, "variables", "no NIXL_, UCX_ or FI_ variable is set")];
    }
    said.into_iter().map(|(name, value)| Finding::ok(ABOUT, name, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_shown() {
        let set = |pairs: &[(&str, &str)]| {
            let variables: Vec<_> = pairs.iter().map(|(name, value)| (name.into(), value.into())).collect();
            look(variables.into_iter())
        };
        let found = set(&[("UCX_TLS", "tcp"), ("HOME", "/"), ("FI_PROVIDER", "efa"), ("XUCX_TLS", "no")]);
        let names: Vec<_> =
            found.iter().map(|finding| (finding.name.as_str(), finding.what.as_str())).collect();
        assert_eq!(names, [("FI_PROVIDER", "efa"), ("UCX_TLS", "tcp")]);
        assert_eq!(set(&[("HOME", "/")]).len(), 1);
    }
}
