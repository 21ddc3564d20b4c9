package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"reflect"
	"strings"
	"time"
)

// Keys that Helm would generate are Ed25519 keys here, whatever the type: they cost no time, and
// their signatures are the same in each run.

func (c *standInCall) newKey() crypto.Signer {
	return ed25519.NewKeyFromSeed(c.passStream(ed25519.SeedSize))
}

func genPrivateKey(c *standInCall) []reflect.Value {
	switch kind := c.text(0); kind {
	case "", "rsa", "dsa", "ecdsa", "ed25519":
		return c.results(encodeKey(c.newKey()))
	default:
		c.isStable = true
		return c.results("Unknown type " + kind)
	}
}

func genCA(c *standInCall) []reflect.Value {
	return c.authority(c.newKey(), nil)
}

func genCAWithKey(c *standInCall) []reflect.Value {
	return c.authority(parseKey(c.text(2)))
}

func (c *standInCall) authority(key crypto.Signer, err error) []reflect.Value {
	if err != nil {
		return c.certificate("", "", fmt.Errorf("parsing private key: %w", err))
	}
	template, err := c.template(c.text(0), nil, nil, c.number(1))
	if err != nil {
		return c.certificate("", "", err)
	}
	template.KeyUsage |= x509.KeyUsageCertSign
	template.IsCA = true
	return c.sign(template, key, template, key)
}

func genSelfSignedCert(c *standInCall) []reflect.Value {
	return c.selfSigned(c.newKey(), nil)
}

func genSelfSignedCertWithKey(c *standInCall) []reflect.Value {
	return c.selfSigned(parseKey(c.text(4)))
}

func (c *standInCall) selfSigned(key crypto.Signer, err error) []reflect.Value {
	if err != nil {
		return c.certificate("", "", fmt.Errorf("parsing private key: %w", err))
	}
	template, err := c.template(c.text(0), c.list(1), c.list(2), c.number(3))
	if err != nil {
		return c.certificate("", "", err)
	}
	return c.sign(template, key, template, key)
}

func genSignedCert(c *standInCall) []reflect.Value {
	return c.signed(c.newKey(), nil)
}

func genSignedCertWithKey(c *standInCall) []reflect.Value {
	return c.signed(parseKey(c.text(5)))
}

func (c *standInCall) signed(key crypto.Signer, err error) []reflect.Value {
	if err != nil {
		return c.certificate("", "", fmt.Errorf("parsing private key: %w", err))
	}
	authority := c.arguments[4]
	block, _ := pem.Decode([]byte(authority.FieldByName("Cert").String()))
	if block == nil {
		return c.certificate("", "", errors.New("unable to decode certificate"))
	}
	signer, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return c.certificate("", "", fmt.Errorf("error parsing certificate: decodedSignerCert.Bytes: %w", err))
	}
	signerKey, err := parseKey(authority.FieldByName("Key").String())
	if err != nil {
		return c.certificate("", "", fmt.Errorf("error parsing private key: %w", err))
	}
	template, err := c.template(c.text(0), c.list(1), c.list(2), c.number(3))
	if err != nil {
		return c.certificate("", "", err)
	}
	return c.sign(template, key, signer, signerKey)
}

func (c *standInCall) list(index int) []any {
	list, _ := c.arguments[index].Interface().([]any)
	return list
}

func (c *standInCall) template(name string, ips, dnsNames []any, days int) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(c.passStream(16)),
		Subject:               pkix.Name{CommonName: name},
		IPAddresses:           []net.IP{},
		DNSNames:              []string{},
		NotBefore:             c.clock(),
		NotAfter:              c.clock().Add(24 * time.Hour * time.Duration(days)),
		KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	for _, ip := range ips {
		text, ok := ip.(string)
		if !ok {
			return nil, fmt.Errorf("error parsing ip: %v is not a string", ip)
		}
		parsed := net.ParseIP(text)
		if parsed == nil {
			return nil, fmt.Errorf("error parsing ip: %s", text)
		}
		template.IPAddresses = append(template.IPAddresses, parsed)
	}
	for _, dnsName := range dnsNames {
		text, ok := dnsName.(string)
		if !ok {
			return nil, fmt.Errorf("error processing alternate dns name: %v is not a string", dnsName)
		}
		template.DNSNames = append(template.DNSNames, text)
	}
	return template, nil
}

// sign makes a certificate. Without a source of chance, signatures of all kinds of keys are
// deterministic.
func (c *standInCall) sign(template *x509.Certificate, key crypto.Signer, parent *x509.Certificate, parentKey crypto.Signer) []reflect.Value {
	data, err := x509.CreateCertificate(nil, template, parent, key.Public(), parentKey)
	if err != nil {
		return c.certificate("", "", fmt.Errorf("error creating certificate: %w", err))
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: data})
	return c.certificate(string(text), encodeKey(key), nil)
}

// certificate returns a value of Sprig's type, which has no public name.
func (c *standInCall) certificate(cert, key string, err error) []reflect.Value {
	result := reflect.New(c.original.Type().Out(0)).Elem()
	result.FieldByName("Cert").SetString(cert)
	result.FieldByName("Key").SetString(key)
	failure := reflect.New(c.original.Type().Out(1)).Elem()
	if err != nil {
		failure.Set(reflect.ValueOf(err))
	}
	return []reflect.Value{result, failure}
}

func encodeKey(key crypto.Signer) string {
	block := &pem.Block{Type: "PRIVATE KEY"}
	var err error
	switch k := key.(type) {
	case *rsa.PrivateKey:
		block.Type, block.Bytes = "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(k)
	case *ecdsa.PrivateKey:
		block.Type = "EC PRIVATE KEY"
		block.Bytes, err = x509.MarshalECPrivateKey(k)
	default:
		block.Bytes, err = x509.MarshalPKCS8PrivateKey(k)
	}
	if err != nil {
		return ""
	}
	return string(pem.EncodeToMemory(block))
}

func parseKey(text string) (crypto.Signer, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no PEM data in input")
	}
	var key any
	var err error
	switch kind := block.Type; {
	case kind == "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case kind == "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case kind == "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case !strings.HasSuffix(kind, " PRIVATE KEY"):
		err = fmt.Errorf("no private key data in PEM block of type %s", kind)
	default:
		err = fmt.Errorf("invalid private key type %s", strings.TrimSuffix(kind, " PRIVATE KEY"))
	}
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("keys of type %T do not sign", key)
	}
	return signer, nil
}
