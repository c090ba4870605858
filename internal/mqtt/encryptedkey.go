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
	keyType          = "PRIVATE KEY"
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
)

// encryptedKey is EncryptedPrivateKeyInfo of RFC 5958.
type encryptedKey struct {
	Algorithm pkix.AlgorithmIdentifier
	Data      []byte
}

type pbes2 struct {
	Derivation, Cipher pkix.AlgorithmIdentifier
}

type pbkdf2Parameters struct {
	Salt       []byte
	Iterations int
	KeyLength  int                      `asn1:"optional"`
	Hash       pkix.AlgorithmIdentifier `asn1:"optional"`
}

func isEncryptedKey(text []byte) bool {
	block, _ := pem.Decode(text)
	return block != nil && (block.Type == encryptedKeyType || isEncryptedByPEM(block))
}

// isEncryptedByPEM reports whether the PEM format itself encrypts the key, with one round of
// MD5.
func isEncryptedByPEM(block *pem.Block) bool { return block.Headers["DEK-Info"] != "" }

const convertKey = `convert it with "openssl pkcs8 -topk8 -v2 aes-256-cbc"`

// decryptKey returns the key in PEM, decrypted.
func decryptKey(text, password []byte) ([]byte, error) {
	block, _ := pem.Decode(text)
	switch {
	case block == nil:
		return nil, errors.New("it holds no private key in PEM")
	case isEncryptedByPEM(block):
		return nil, errors.New("its encryption is no longer safe; " + convertKey)
	case block.Type != encryptedKeyType:
		return nil, errors.New("it is not encrypted, and a password is given for it")
	}
	decrypt, data, err := readEncryptedKey(block.Bytes, password)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, convertKey)
	}
	if len(data) == 0 || len(data)%aes.BlockSize != 0 {
		return nil, errors.New("it is cut short")
	}
	plain := make([]byte, len(data))
	decrypt.CryptBlocks(plain, data)
	// A wrong password shows in the padding [RFC 8018, 6.1.1] or in the DER of the key.
	padding := int(plain[len(plain)-1])
	if padding < 1 || padding > aes.BlockSize || !bytes.HasSuffix(plain, bytes.Repeat([]byte{byte(padding)}, padding)) {
		return nil, errWrongKeyPassword
	}
	plain = plain[:len(plain)-padding]
	var key asn1.RawValue
	if rest, err := asn1.Unmarshal(plain, &key); err != nil || len(rest) > 0 {
		return nil, errWrongKeyPassword
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: plain}), nil
}

var errWrongKeyPassword = errors.New("the password of the private key is wrong")

// readEncryptedKey returns the encrypted data and the cipher that decrypts it.
func readEncryptedKey(der, password []byte) (decrypt cipher.BlockMode, data []byte, err error) {
	var key encryptedKey
	if _, err := asn1.Unmarshal(der, &key); err != nil {
		return nil, nil, fmt.Errorf("not an encrypted private key: %w", err)
	}
	if !key.Algorithm.Algorithm.Equal(oidPBES2) {
		return nil, nil, fmt.Errorf("encrypted with %v, which is not supported", key.Algorithm.Algorithm)
	}
	var scheme pbes2
	if _, err := asn1.Unmarshal(key.Algorithm.Parameters.FullBytes, &scheme); err != nil {
		return nil, nil, fmt.Errorf("not an encrypted private key: %w", err)
	}
	if !scheme.Derivation.Algorithm.Equal(oidPBKDF2) {
		return nil, nil, fmt.Errorf("its key derivation is %v, which is not supported", scheme.Derivation.Algorithm)
	}
	var derivation pbkdf2Parameters
	if _, err := asn1.Unmarshal(scheme.Derivation.Parameters.FullBytes, &derivation); err != nil {
		return nil, nil, fmt.Errorf("not an encrypted private key: %w", err)
	}
	newHash, known := keyHashes[derivation.Hash.Algorithm.String()]
	if !known {
		return nil, nil, fmt.Errorf("its password is hashed with %v, which is not supported", derivation.Hash.Algorithm)
	}
	length, known := keyCiphers[scheme.Cipher.Algorithm.String()]
	if !known {
		return nil, nil, fmt.Errorf("encrypted with %v, which is not supported", scheme.Cipher.Algorithm)
	}
	if derivation.Iterations < 1 || derivation.Iterations > maxIterations {
		return nil, nil, fmt.Errorf("its password takes %d iterations, and 1 to %d are supported", derivation.Iterations, maxIterations)
	}
	var vector []byte
	if _, err := asn1.Unmarshal(scheme.Cipher.Parameters.FullBytes, &vector); err != nil || len(vector) != aes.BlockSize {
		return nil, nil, errors.New("not an encrypted private key: it has no initialization vector")
	}
	derived, err := pbkdf2.Key(newHash, string(password), derivation.Salt, derivation.Iterations, length)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, nil, err
	}
	return cipher.NewCBCDecrypter(block, vector), key.Data, nil
}
