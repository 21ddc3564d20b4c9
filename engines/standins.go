package main

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// standInCall is one call of a function that is not reproducible.
type standInCall struct {
	record    *record
	name      string
	original  reflect.Value
	arguments []reflect.Value
	// isStable is set if the result does not depend on clock or chance after all.
	isStable bool
}

type standIn func(*standInCall) []reflect.Value

// standIns replace all functions of Helm whose results depend on clock, chance or network.
var standIns map[string]standIn

func init() {
	standIns = map[string]standIn{
		"randAlphaNum":  randomText(alphabetLetters + alphabetDigits),
		"randAlpha":     randomText(alphabetLetters),
		"randNumeric":   randomText(alphabetDigits),
		"randAscii":     randomText(alphabetASCII),
		"randBytes":     randomBytes,
		"randInt":       randomInt,
		"shuffle":       shuffle,
		"uuidv4":        uuid,
		"bcrypt":        bcryptHash,
		"htpasswd":      htpasswd,
		"encryptAES":    encryptAES,
		"getHostByName": hostByName,

		"now":            now,
		"ago":            ago,
		"date":           clocked(1),
		"dateInZone":     clocked(1),
		"date_in_zone":   clocked(1),
		"htmlDate":       clocked(0),
		"htmlDateInZone": clocked(0),
		"durationRound":  durationRound,

		"genPrivateKey":            genPrivateKey,
		"genCA":                    genCA,
		"genCAWithKey":             genCAWithKey,
		"genSelfSignedCert":        genSelfSignedCert,
		"genSelfSignedCertWithKey": genSelfSignedCertWithKey,
		"genSignedCert":            genSignedCert,
		"genSignedCertWithKey":     genSignedCertWithKey,
	}
}

const (
	alphabetLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	alphabetDigits  = "0123456789"
)

var alphabetASCII = func() string {
	var all strings.Builder
	for char := byte(32); char < 127; char++ {
		all.WriteByte(char)
	}
	return all.String()
}()

// maxRandom limits the length of random texts, which Helm does not.
const maxRandom = 1 << 20

func (c *standInCall) results(values ...any) []reflect.Value {
	results := make([]reflect.Value, len(values))
	for i, value := range values {
		result := reflect.New(c.original.Type().Out(i)).Elem()
		if value != nil {
			result.Set(reflect.ValueOf(value))
		}
		results[i] = result
	}
	return results
}

func (c *standInCall) text(index int) string { return c.arguments[index].String() }

func (c *standInCall) number(index int) int { return int(c.arguments[index].Int()) }

// stream returns bytes that depend on the function, its arguments and the number of equal calls
// before, but not on the pass.
func (c *standInCall) stream(length int) []byte {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\x00", c.name)
	for _, argument := range c.arguments {
		fmt.Fprintf(hash, "%v\x00", argument)
	}
	key := string(hash.Sum(nil))
	count := c.record.counts[key]
	c.record.counts[key]++
	out := make([]byte, 0, length+sha256.Size)
	for block := uint64(0); len(out) < length; block++ {
		seed := binary.BigEndian.AppendUint64([]byte(key), uint64(count))
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(seed, block))
		out = append(out, sum[:]...)
	}
	return out[:length]
}

// randomText differs in every character between two passes.
func randomText(alphabet string) standIn {
	return func(c *standInCall) []reflect.Value {
		count := c.number(0)
		if count <= 0 {
			return c.results("")
		}
		if count > maxRandom {
			panic(fmt.Sprintf("%s: more than %d characters", c.name, maxRandom))
		}
		out := c.stream(count)
		for i := range out {
			out[i] = alphabet[(int(out[i])+c.record.pass)%len(alphabet)]
		}
		return c.results(string(out))
	}
}

func randomBytes(c *standInCall) []reflect.Value {
	count := c.number(0)
	if count < 0 || count > maxRandom {
		panic(fmt.Sprintf("%s: expected 0 to %d bytes", c.name, maxRandom))
	}
	out := c.stream(count)
	for i := range out {
		out[i] += byte(c.record.pass)
	}
	return c.results(base64.StdEncoding.EncodeToString(out), nil)
}

func randomInt(c *standInCall) []reflect.Value {
	low, high := c.number(0), c.number(1)
	if high <= low {
		panic("invalid argument to Intn")
	}
	seed := binary.BigEndian.Uint32(c.stream(4))
	// Odd passes and even ones differ, unless there is only one number.
	offset := (uint64(seed) + uint64(c.record.pass)) % uint64(high-low)
	return c.results(low + int(offset))
}

func shuffle(c *standInCall) []reflect.Value {
	runes := []rune(c.text(0))
	if len(runes) > 1 && c.record.pass%2 == 0 {
		runes = append(runes[1:], runes[0])
	}
	return c.results(string(runes))
}

func (c *standInCall) passStream(length int) []byte {
	out := c.stream(length)
	for i := range out {
		out[i] += byte(c.record.pass)
	}
	return out
}

func uuid(c *standInCall) []reflect.Value {
	id := c.passStream(16)
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id)
	return c.results(fmt.Sprintf("%s-%s-%s-%s-%s", text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
}

// bcryptText has the form of a hash with cost 10, but is none.
func (c *standInCall) bcryptText() string {
	const alphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	out := c.passStream(53)
	for i := range out {
		out[i] = alphabet[int(out[i])%len(alphabet)]
	}
	return "$2a$10$" + string(out)
}

func bcryptHash(c *standInCall) []reflect.Value {
	if len(c.text(0)) > 72 {
		c.isStable = true
		return c.results("failed to encrypt string with bcrypt: bcrypt: password length exceeds 72 bytes")
	}
	return c.results(c.bcryptText())
}

func htpasswd(c *standInCall) []reflect.Value {
	user := c.text(0)
	if strings.Contains(user, ":") {
		c.isStable = true
		return c.results("invalid username: " + user)
	}
	return c.results(user + ":" + c.bcryptText())
}

// encryptAES encrypts with an initialization vector of the pass, so that decryptAES works.
func encryptAES(c *standInCall) []reflect.Value {
	if c.text(1) == "" {
		c.isStable = true
		return c.results("", nil)
	}
	key := make([]byte, 32)
	copy(key, c.text(0))
	block, err := aes.NewCipher(key)
	if err != nil {
		return c.results("", err)
	}
	content := []byte(c.text(1))
	padding := aes.BlockSize - len(content)%aes.BlockSize
	content = append(content, strings.Repeat(string(rune(padding)), padding)...)
	vector := c.passStream(aes.BlockSize)
	cipher.NewCBCEncrypter(block, vector).CryptBlocks(content, content)
	return c.results(base64.StdEncoding.EncodeToString(append(vector, content...)), nil)
}

// hostByName answers as Helm does without --enable-dns.
func hostByName(c *standInCall) []reflect.Value {
	return c.results("")
}

// clocks are times of the two passes that differ in every part.
var clocks = [...]time.Time{
	time.Date(2024, time.January, 2, 3, 4, 5, 123456789, time.UTC),
	time.Date(2025, time.December, 29, 17, 38, 46, 987654321, time.UTC),
}

func (c *standInCall) clock() time.Time {
	return clocks[(c.record.pass-1)%len(clocks)]
}

func now(c *standInCall) []reflect.Value {
	return c.results(c.clock())
}

var (
	errNoTime = errors.New("no time")
)

// givenTime returns the time that an argument of type any contains.
func givenTime(argument reflect.Value) (time.Time, error) {
	switch value := argument.Interface().(type) {
	case time.Time:
		return value, nil
	case *time.Time:
		return *value, nil
	case int64:
		return time.Unix(value, 0), nil
	case int:
		return time.Unix(int64(value), 0), nil
	case int32:
		return time.Unix(int64(value), 0), nil
	}
	return time.Time{}, errNoTime
}

// clocked passes the clock to a function that uses it if it gets no time.
func clocked(index int) standIn {
	return func(c *standInCall) []reflect.Value {
		arguments := c.arguments
		c.isStable = true
		if _, err := givenTime(arguments[index]); err != nil {
			c.isStable = false
			arguments = append([]reflect.Value{}, arguments...)
			arguments[index] = reflect.ValueOf(c.clock())
		}
		return c.original.Call(arguments)
	}
}

func ago(c *standInCall) []reflect.Value {
	since, err := givenTime(c.arguments[0])
	_, isPointer := c.arguments[0].Interface().(*time.Time)
	_, isShort := c.arguments[0].Interface().(int32)
	if err != nil || isPointer || isShort {
		// Sprig counts from now then.
		c.isStable = true
		return c.results(time.Duration(0).String())
	}
	return c.results(c.clock().Sub(since).Round(time.Second).String())
}

func durationRound(c *standInCall) []reflect.Value {
	since, ok := c.arguments[0].Interface().(time.Time)
	if !ok {
		c.isStable = true
		return c.original.Call(c.arguments)
	}
	return c.original.Call([]reflect.Value{reflect.ValueOf(int64(c.clock().Sub(since)))})
}
