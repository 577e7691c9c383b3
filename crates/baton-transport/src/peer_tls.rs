//! TLS between engines, for the side channel and the transport `tcp` alike.
//!
//! Both sides of a connection present a certificate, and each checks that the other's was issued by the same
//! authority: whoever has none is no engine of this deployment. TLS 1.3 only, without session tickets, so that
//! nothing is kept between connections.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Where an engine's certificate is, and whom it trusts. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// Our certificate, followed by those between it and the authority, if any.
    pub certificate: PathBuf,
    /// The private key of our certificate: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
    /// The certificates of the authorities whose engines we trust.
    pub authorities: PathBuf,
    /// What every peer's certificate is issued to. By default, the host under which the peer is dialled.
    pub name: Option<String>,
}

/// Why [`PeerTls`] cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PeerTlsError {
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    /// `what` is what should have been there.
    #[error("{what}: {why}")]
    Pem { what: String, why: String },
    #[error("certificate, key and authorities do not fit together: {0}")]
    Unfit(String),
    #[error("{0:?} is neither a host name nor an IP address")]
    Name(String),
}

/// How engines of one deployment know each other. Cheap to clone.
#[derive(Clone)]
pub struct PeerTls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: Option<ServerName<'static>>,
}

impl PeerTls {
    /// # Errors
    /// If a file cannot be read, holds something else, or the key is not the certificate's.
    pub fn load(files: &PeerTlsFiles) -> Result<Self, PeerTlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| PeerTlsError::Read { path: path.to_owned(), error })
        };
        let in_file = |what: &str, path: &Path| format!("{what} in {}", path.display());
        let chain = certificates(
            &read(&files.certificate)?,
            &in_file("the engine's certificate", &files.certificate),
        )?;
        let key = private_key(&read(&files.key)?, &in_file("the engine's private key", &files.key))?;
        let authorities = certificates(
            &read(&files.authorities)?,
            &in_file("the authorities' certificates", &files.authorities),
        )?;
        Self::new(chain, key, authorities, files.name.as_deref())
    }

    /// The same of PEM texts in memory.
    ///
    /// # Errors
    /// As [`PeerTls::load`].
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        authorities: &[u8],
        name: Option<&str>,
    ) -> Result<Self, PeerTlsError> {
        let chain = certificates(certificate, "the engine's certificate")?;
        let key = private_key(key, "the engine's private key")?;
        Self::new(chain, key, certificates(authorities, "the authorities' certificates")?, name)
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
        name: Option<&str>,
    ) -> Result<Self, PeerTlsError> {
        let unfit = |error: &dyn fmt::Display| PeerTlsError::Unfit(error.to_string());
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| unfit(&error))?;
        }
        let roots = Arc::new(roots);

        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| unfit(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| unfit(&error))?;
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});

        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unfit(&error))?;
        client.resumption = Resumption::disabled();

        let name = name.map(server_name).transpose()?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name })
    }

    /// For the side that dials.
    pub fn client(&self) -> &Arc<ClientConfig> {
        &self.client
    }

    /// For the side that is dialled. It refuses whoever presents no certificate.
    pub fn server(&self) -> &Arc<ServerConfig> {
        &self.server
    }

    /// Whom the certificate of a peer dialled at `host` must be issued to: a host name, or an IP address
    /// without brackets or port.
    ///
    /// # Errors
    /// If no certificate can be issued to such a host, and no name is configured for all peers.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, PeerTlsError> {
        self.name.clone().map_or_else(|| server_name(host), Ok)
    }
}

/// Keys stay out of logs.
impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerTls").field("name", &self.name).finish_non_exhaustive()
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, PeerTlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| PeerTlsError::Name(host.to_owned()))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, PeerTlsError> {
    let fault = |why: String| PeerTlsError::Pem { what: what.to_owned(), why };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(fault("there is no CERTIFICATE section".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(fault(error.to_string())),
    }
}

fn private_key(pem: &[u8], what: &str) -> Result<PrivateKeyDer<'static>, PeerTlsError> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| PeerTlsError::Pem { what: what.to_owned(), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::{ClientConnection, ServerConnection};

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Certificate and key.
    fn issue(authority: &Authority, host: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
    }

    fn tls(issuer: &Authority, trusted: &Authority, host: &str, name: Option<&str>) -> PeerTls {
        let (certificate, key) = issue(issuer, host);
        PeerTls::from_pem(certificate.as_bytes(), key.as_bytes(), trusted.pem().as_bytes(), name).unwrap()
    }

    /// Whether both sides are content.
    fn shake_hands(client: &PeerTls, server: &PeerTls, host: &str) -> bool {
        let name = client.server_name(host).unwrap();
        let mut client = ClientConnection::new(client.client().clone(), name).unwrap();
        let mut server = ServerConnection::new(server.server().clone()).unwrap();
        for _ in 0..4 {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            if !bytes.is_empty() {
                server.read_tls(&mut bytes.as_slice()).unwrap();
            }
            if server.process_new_packets().is_err() {
                return false;
            }
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            if !bytes.is_empty() {
                client.read_tls(&mut bytes.as_slice()).unwrap();
            }
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        !client.is_handshaking() && !server.is_handshaking()
    }

    #[test]
    fn engines_of_one_authority_trust_each_other_and_nobody_else() {
        let (ours, foreign) = (authority(), authority());
        let a = tls(&ours, &ours, "127.0.0.1", None);
        let b = tls(&ours, &ours, "::1", None);
        assert!(shake_hands(&a, &b, "::1"));
        assert!(shake_hands(&b, &a, "127.0.0.1"));
        assert!(!shake_hands(&a, &b, "127.0.0.1"), "it is issued to another host");
        let stranger = tls(&foreign, &ours, "127.0.0.1", None);
        assert!(!shake_hands(&stranger, &a, "127.0.0.1"), "the client is foreign");
        assert!(!shake_hands(&a, &stranger, "127.0.0.1"), "the server is foreign");
    }

    #[test]
    fn a_client_without_a_certificate_is_refused() {
        let ours = authority();
        let server = tls(&ours, &ours, "engine", None);
        let mut roots = RootCertStore::empty();
        roots.add(ours.der().clone()).unwrap();
        let bare = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let bare = PeerTls { client: Arc::new(bare), ..server.clone() };
        assert!(!shake_hands(&bare, &server, "engine"));
    }

    #[test]
    fn one_name_may_stand_for_every_peer() {
        let ours = authority();
        let a = tls(&ours, &ours, "engine.baton", Some("engine.baton"));
        assert!(shake_hands(&a, &a, "10.0.0.7"));
        let b = tls(&ours, &ours, "engine.baton", None);
        assert!(!shake_hands(&b, &a, "10.0.0.7"));
        assert!(matches!(b.server_name("no host"), Err(PeerTlsError::Name(_))));
    }

    #[test]
    fn what_is_wrong_with_the_files_is_told() {
        let ours = authority();
        let (certificate, key) = issue(&ours, "a");
        let (_, other_key) = issue(&ours, "b");
        let ca = ours.pem();
        let told = |certificate: &str, key: &str, ca: &str| {
            let [certificate, key, ca] = [certificate, key, ca].map(str::as_bytes);
            PeerTls::from_pem(certificate, key, ca, None).unwrap_err().to_string()
        };
        assert!(told("", &key, &ca).starts_with("the engine's certificate"));
        assert!(told(&certificate, &certificate, &ca).starts_with("the engine's private key"));
        assert!(told(&certificate, &key, &key).starts_with("the authorities' certificates"));
        assert!(told(&certificate, &other_key, &ca).contains("fit together"));
        let files = PeerTlsFiles {
            certificate: "no/such.pem".into(),
            key: "k".into(),
            authorities: "a".into(),
            name: None,
        };
        assert!(PeerTls::load(&files).unwrap_err().to_string().contains("no/such.pem"));
    }
}
