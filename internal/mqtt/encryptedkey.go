package mqtt

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
)

// The standard library does not decrypt private keys. This file decrypts PKCS #8 with PBES2,
// PBKDF2 and AES in CBC mode (RFC 8018), which is what openssl has written for many years.

const (
	encryptedKeyType = "ENCRYPTED PRIVATE KEY"
	// maxIterations bounds the time to read a key file, to about a second. OpenSSL uses 2,048.
	maxIterations = 1 << 20
)

var (
	oidPBES2  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}
	oidPBKDF2 = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}

	keyCiphers = map[string]int{ // to the length of the key
		"2.16.840.1.101.3.4.1.2":  16, // AES-128-CBC
		"2.16.840.1.101.3.4.1.22": 24, // AES-192-CBC
		"2.16.840.1.101.3.4.1.42": 32, // AES-256-CBC
	}
	keyHashes = map[string]func() hash.Hash{
		"":                    sha1.New, // the default of RFC 8018, appendix A.2
		"1.2.840.113549.2.7":  sha1.New,
		"1.2.840.113549.2.9":  sha256.New,
		"1.2.840.113549.2.10": sha512.New384,
		"1.2.840.113549.2.11": sha512.New,
	}

	errKeyEncryption    = errors.New(`not an encrypted private key of a kind that is supported (PBES2, PBKDF2, AES in CBC mode); convert it with "openssl pkcs8 -topk8 -v2 aes-256-cbc"`)
	errWrongKeyPassword = errors.New("the password of the private key is wrong")
)

// encryptedKey is EncryptedPrivateKeyInfo of RFC 5958, with the parameters of PBES2 and PBKDF2.
type encryptedKey struct {
	Algorithm struct {
		ID    asn1.ObjectIdentifier
		PBES2 struct {
			Derivation struct {
				ID     asn1.ObjectIdentifier
				PBKDF2 struct {
					Salt       []byte
					Iterations int
					KeyLength  int                      `asn1:"optional"`
					Hash       pkix.AlgorithmIdentifier `asn1:"optional"`
				}
			}
			Cipher struct {
				ID     asn1.ObjectIdentifier
				Vector []byte
			}
		}
	}
	Data []byte
}

// isEncryptedKey reports whether a key is encrypted, as PKCS #8 does it or, with one round of MD5, the PEM
// format itself.
func isEncryptedKey(text []byte) bool {
	block, _ := pem.Decode(text)
	return block != nil && (block.Type == encryptedKeyType || block.Headers["DEK-Info"] != "")
}

// decryptKey returns the key in PEM, decrypted.
func decryptKey(text, password []byte) ([]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it holds no private key in PEM")
	}
	if !isEncryptedKey(text) {
		return nil, errors.New("it is not encrypted, and a password is given for it")
	}
	var key encryptedKey
	if _, err := asn1.Unmarshal(block.Bytes, &key); err != nil {
		return nil, errKeyEncryption
	}
	derivation, encryption := &key.Algorithm.PBES2.Derivation, &key.Algorithm.PBES2.Cipher
	if !key.Algorithm.ID.Equal(oidPBES2) || !derivation.ID.Equal(oidPBKDF2) {
		return nil, errKeyEncryption
	}
	parameters := &derivation.PBKDF2
	newHash, length := keyHashes[parameters.Hash.Algorithm.String()], keyCiphers[encryption.ID.String()]
	if newHash == nil || length == 0 || len(encryption.Vector) != aes.BlockSize || len(key.Data) == 0 || len(key.Data)%aes.BlockSize != 0 {
		return nil, errKeyEncryption
	}
	if parameters.Iterations < 1 || parameters.Iterations > maxIterations {
		return nil, fmt.Errorf("its password takes %d iterations, and 1 to %d are supported", parameters.Iterations, maxIterations)
	}
	derived, err := pbkdf2.Key(newHash, string(password), parameters.Salt, parameters.Iterations, length)
	if err != nil {
		return nil, err
	}
	blocks, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	plain := make([]byte, len(key.Data))
	cipher.NewCBCDecrypter(blocks, encryption.Vector).CryptBlocks(plain, key.Data)
	// A wrong password shows in the padding [RFC 8018, 6.1.1] or in the DER of the key.
	padding := int(plain[len(plain)-1])
	if padding < 1 || padding > aes.BlockSize || !bytes.HasSuffix(plain, bytes.Repeat([]byte{byte(padding)}, padding)) {
		return nil, errWrongKeyPassword
	}
	plain = plain[:len(plain)-padding]
	if rest, err := asn1.Unmarshal(plain, new(asn1.RawValue)); err != nil || len(rest) > 0 {
		return nil, errWrongKeyPassword
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: plain}), nil
}
