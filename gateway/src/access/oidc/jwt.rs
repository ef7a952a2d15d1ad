//! A JSON Web Token: its form, its signature, and its claims. Pure: the keys and the time are given.
//!
//! The libraries for this bring a second implementation of cryptography; the checks themselves are few. Only algorithms with a public
//! key are accepted, and a key decides which ones.
//!
//! # Invariants
//!
//! - I197: A token of an identity provider is verified by an algorithm of its key, never by one that the token chooses.
//!   (`gateway/src/access/oidc/jwt.rs::a_token_does_not_choose_how_it_is_verified`)

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use jiff::Timestamp;
use ring::signature::{
    self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The maximum length of a token in bytes.
const MAX_TOKEN: usize = 16 * 1024;
/// The difference of clocks that is accepted, in seconds.
const LEEWAY: i64 = 60;

/// The reason why a token is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwtError {
    /// It is not a signed token in the compact form.
    Form(&'static str),
    Algorithm,
    /// The provider has no key with its id.
    UnknownKey,
    Signature,
    /// A claim is missing or wrong.
    Claim(&'static str),
}

impl fmt::Display for JwtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(what) => f.write_str(what),
            Self::Algorithm => f.write_str("its algorithm is not accepted for this key"),
            Self::UnknownKey => f.write_str("the provider has no key with its id"),
            Self::Signature => f.write_str("its signature is wrong"),
            Self::Claim(what) => f.write_str(what),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    RS256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    RS384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    RS512,
    /// RSASSA-PSS with SHA-256.
    PS256,
    /// RSASSA-PSS with SHA-384.
    PS384,
    /// RSASSA-PSS with SHA-512.
    PS512,
    /// ECDSA with P-256 and SHA-256.
    ES256,
    /// ECDSA with P-384 and SHA-384.
    ES384,
    /// Ed25519.
    #[serde(alias = "Ed25519")]
    EdDSA,
    /// Any other one, which is refused: `none` and those with a shared secret among them.
    #[serde(other)]
    Other,
}

/// A public key of a provider (RFC 7517).
#[derive(Debug, Clone, Deserialize)]
pub struct PublicKey {
    /// Its id.
    #[serde(default)]
    pub kid: Option<String>,
    #[serde(default, rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    alg: Option<Algorithm>,
    #[serde(flatten)]
    material: KeyMaterial,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kty")]
enum KeyMaterial {
    #[serde(rename = "RSA")]
    Rsa { n: String, e: String },
    #[serde(rename = "EC")]
    EllipticCurve { crv: String, x: String, y: String },
    #[serde(rename = "OKP")]
    Edwards { crv: String, x: String },
    #[serde(other)]
    Other,
}

impl PublicKey {
    /// `true` if it is meant for signatures.
    pub fn is_for_signatures(&self) -> bool {
        self.usage.as_deref().is_none_or(|usage| usage == "sig")
    }

    fn verify(&self, algorithm: Algorithm, content: &[u8], signature: &[u8]) -> Result<(), JwtError> {
        if self.alg.is_some_and(|own| own != algorithm) || !self.is_for_signatures() {
            return Err(JwtError::Algorithm);
        }
        let decode = |text: &str| {
            let text = text.trim_end_matches('=');
            BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| JwtError::UnknownKey)
        };
        match &self.material {
            KeyMaterial::Rsa { n, e } => {
                let parameters = rsa_parameters(algorithm).ok_or(JwtError::Algorithm)?;
                let key = RsaPublicKeyComponents { n: decode(n)?, e: decode(e)? };
                key.verify(parameters, content, signature).map_err(|_| JwtError::Signature)
            }
            KeyMaterial::EllipticCurve { crv, x, y } => {
                let verification = curve_algorithm(algorithm, crv).ok_or(JwtError::Algorithm)?;
                let point = [vec![4], decode(x)?, decode(y)?].concat();
                let key = UnparsedPublicKey::new(verification, point);
                key.verify(content, signature).map_err(|_| JwtError::Signature)
            }
            KeyMaterial::Edwards { crv, x } if crv == "Ed25519" && algorithm == Algorithm::EdDSA => {
                let key = UnparsedPublicKey::new(&signature::ED25519, decode(x)?);
                key.verify(content, signature).map_err(|_| JwtError::Signature)
            }
            KeyMaterial::Edwards { .. } | KeyMaterial::Other => Err(JwtError::Algorithm),
        }
    }
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA | Algorithm::Other => None,
    }
}

fn curve_algorithm(algorithm: Algorithm, curve: &str) -> Option<&'static dyn VerificationAlgorithm> {
    match (algorithm, curve) {
        (Algorithm::ES256, "P-256") => Some(&signature::ECDSA_P256_SHA256_FIXED),
        (Algorithm::ES384, "P-384") => Some(&signature::ECDSA_P384_SHA384_FIXED),
        (_, _) => None,
    }
}

#[derive(Deserialize)]
struct Header {
    alg: Algorithm,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that a reader must understand; none is.
    #[serde(default)]
    crit: Option<Value>,
}

/// The required values of claims.
pub struct ClaimRules<'a> {
    pub issuer: &'a str,
    pub audience: &'a str,
    /// The time.
    pub now: Timestamp,
}

/// A token whose signature is not verified yet.
pub struct SignedToken<'a> {
    header: Header,
    content: &'a [u8],
    claims: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> SignedToken<'a> {
    /// Parses a token in the compact form.
    pub fn parse(text: &'a str) -> Result<Self, JwtError> {
        if text.len() > MAX_TOKEN {
            return Err(JwtError::Form("it is too long"));
        }
        let decode = |part: &str| {
            BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| JwtError::Form("it is not in Base64"))
        };
        let (content, signature) = text.rsplit_once('.').ok_or(JwtError::Form("it has no signature"))?;
        let (header, claims) = content.split_once('.').ok_or(JwtError::Form("it has no claims"))?;
        let header: Header = serde_json::from_slice(&decode(header)?)
            .map_err(|_| JwtError::Form("its header is not one of a signed token"))?;
        if header.crit.is_some() {
            return Err(JwtError::Form("its header demands extensions that are not supported"));
        }
        Ok(Self {
            header,
            content: content.as_bytes(),
            claims: decode(claims)?,
            signature: decode(signature)?,
        })
    }

    /// The id of the key that has signed it.
    pub fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// Checks the signature and the claims, and returns the claims. `keys` are those that may have signed it.
    pub fn verify(&self, keys: &[PublicKey], rules: &ClaimRules<'_>) -> Result<Map<String, Value>, JwtError> {
        let mut outcome = Err(JwtError::UnknownKey);
        for key in keys {
            outcome = key.verify(self.header.alg, self.content, &self.signature);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        let claims =
            serde_json::from_slice(&self.claims).map_err(|_| JwtError::Form("its claims are no object"))?;
        check_claims(&claims, rules)?;
        Ok(claims)
    }
}

fn check_claims(claims: &Map<String, Value>, rules: &ClaimRules<'_>) -> Result<(), JwtError> {
    if claims.get("iss").and_then(Value::as_str) != Some(rules.issuer) {
        return Err(JwtError::Claim("it is of another issuer"));
    }
    let has_audience = match claims.get("aud") {
        Some(Value::String(audience)) => audience == rules.audience,
        Some(Value::Array(audiences)) => {
            audiences.iter().any(|audience| audience.as_str() == Some(rules.audience))
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    if !has_audience {
        return Err(JwtError::Claim("it is for another audience"));
    }
    let now = rules.now.as_second();
    let seconds =
        |name: &str| claims.get(name).and_then(|value| value.as_i64().or_else(|| float_seconds(value)));
    match seconds("exp") {
        Some(expires) if now < expires.saturating_add(LEEWAY) => {}
        Some(_) => return Err(JwtError::Claim("it has expired")),
        None => return Err(JwtError::Claim("it has no time of expiry")),
    }
    match (claims.get("nbf"), seconds("nbf")) {
        (None, _) => Ok(()),
        (Some(_), Some(begins)) if begins.saturating_sub(LEEWAY) <= now => Ok(()),
        (Some(_), _) => Err(JwtError::Claim("it is not valid yet")),
    }
}

/// Times may have fractions of seconds.
#[allow(clippy::cast_possible_truncation, reason = "the cast saturates")]
fn float_seconds(value: &Value) -> Option<i64> {
    value.as_f64().map(|seconds| seconds.floor() as i64)
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn rules() -> ClaimRules<'static> {
        ClaimRules {
            issuer: "https://id.example",
            audience: "millrace",
            now: Timestamp::from_second(NOW).unwrap(),
        }
    }

    fn claims() -> Value {
        json!({ "iss": "https://id.example", "aud": "millrace", "sub": "ann", "exp": NOW + 60 })
    }

    fn signing_key() -> (EcdsaKeyPair, PublicKey) {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let point = pair.public_key().as_ref();
        let (x, y) = (BASE64URL_NOPAD.encode(&point[1..33]), BASE64URL_NOPAD.encode(&point[33..]));
        let key = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "k1", "use": "sig" });
        (pair, serde_json::from_value(key).unwrap())
    }

    fn sign(pair: &EcdsaKeyPair, header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let content = format!("{}.{}", encode(header), encode(claims));
        let signature = pair.sign(&SystemRandom::new(), content.as_bytes()).unwrap();
        format!("{content}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }

    fn verify(text: &str, key: &PublicKey) -> Result<Map<String, Value>, JwtError> {
        SignedToken::parse(text)?.verify(std::slice::from_ref(key), &rules())
    }

    #[test]
    fn signed_tokens_are_accepted_and_changed_ones_refused() {
        let (pair, key) = signing_key();
        let header = json!({ "alg": "ES256", "kid": "k1" });
        let token = sign(&pair, &header, &claims());
        assert_eq!(verify(&token, &key).unwrap()["sub"], "ann");
        let (other, _) = signing_key();
        assert_eq!(verify(&sign(&other, &header, &claims()), &key), Err(JwtError::Signature));
        let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
        parts[1] = BASE64URL_NOPAD
            .encode(json!({ "iss": "https://id.example", "sub": "eve" }).to_string().as_bytes());
        assert_eq!(verify(&parts.join("."), &key), Err(JwtError::Signature));
        for wrong in ["", "a", "a.b", "a.b.c", "..", &token[1..], &format!("{token}.x"), &"x".repeat(20_000)]
        {
            assert!(verify(wrong, &key).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_does_not_choose_how_it_is_verified() {
        let (pair, key) = signing_key();
        for algorithm in ["none", "None", "HS256", "RS256", "ES384", "EdDSA", ""] {
            let token = sign(&pair, &json!({ "alg": algorithm, "kid": "k1" }), &claims());
            assert_eq!(verify(&token, &key), Err(JwtError::Algorithm), "{algorithm}");
            let unsigned = token.rsplit_once('.').unwrap().0.to_owned() + ".";
            assert!(verify(&unsigned, &key).is_err(), "{algorithm}");
        }
        let token = sign(&pair, &json!({ "alg": "ES256", "crit": ["x"] }), &claims());
        assert!(matches!(verify(&token, &key), Err(JwtError::Form(_))));
        let token = sign(&pair, &json!({ "alg": "ES256" }), &claims());
        let encryption = PublicKey { usage: Some("enc".into()), ..key.clone() };
        assert_eq!(verify(&token, &encryption), Err(JwtError::Algorithm));
        let other = PublicKey { alg: Some(Algorithm::ES384), ..key };
        assert_eq!(verify(&token, &other), Err(JwtError::Algorithm));
    }

    #[test]
    fn claims_are_checked() {
        let (pair, key) = signing_key();
        let with = |change: Value| {
            let mut all = claims();
            for (name, value) in change.as_object().unwrap() {
                all[name] = value.clone();
            }
            verify(&sign(&pair, &json!({ "alg": "ES256" }), &all), &key)
        };
        for good in [
            json!({}),
            json!({ "aud": ["x", "millrace"] }),
            json!({ "exp": NOW - 59 }),
            json!({ "nbf": NOW + 60, "exp": 4e9 }),
        ] {
            assert!(with(good.clone()).is_ok(), "{good}");
        }
        for wrong in [
            json!({ "iss": "https://id.example/" }),
            json!({ "iss": null }),
            json!({ "aud": "other" }),
            json!({ "aud": [] }),
            json!({ "aud": 1 }),
            json!({ "exp": NOW - 60 }),
            json!({ "exp": null }),
            json!({ "exp": "never" }),
            json!({ "nbf": NOW + 61 }),
            json!({ "nbf": "x" }),
        ] {
            assert!(matches!(with(wrong.clone()), Err(JwtError::Claim(_))), "{wrong}");
        }
    }

    #[test]
    fn other_kinds_of_keys_verify_too() {
        let random = SystemRandom::new();
        let pair =
            Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap();
        let x = BASE64URL_NOPAD.encode(pair.public_key().as_ref());
        let key: PublicKey =
            serde_json::from_value(json!({ "kty": "OKP", "crv": "Ed25519", "x": x })).unwrap();
        assert!(key.verify(Algorithm::EdDSA, b"content", pair.sign(b"content").as_ref()).is_ok());
        assert_eq!(
            key.verify(Algorithm::ES256, b"content", pair.sign(b"content").as_ref()),
            Err(JwtError::Algorithm)
        );
        // RFC 7515, appendix A.2: RS256.
        let key: PublicKey = serde_json::from_value(json!({
            "kty": "RSA", "e": "AQAB",
            "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
        }))
        .unwrap();
        let content = b"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
        assert!(key.verify(Algorithm::RS256, content, &signature).is_ok());
        assert_eq!(key.verify(Algorithm::RS384, content, &signature), Err(JwtError::Signature));
        assert_eq!(key.verify(Algorithm::ES256, content, &signature), Err(JwtError::Algorithm));
    }
}
