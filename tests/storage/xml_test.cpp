#include "engine/storage/xml.h"

#include <doctest/doctest.h>

namespace engine::storage {

TEST_CASE("elements and their text") {
  const std::string xml =
      "<?xml version=\"1.0\"?><R "
      "xmlns=\"x\"><KeyCount>2</KeyCount><C><Key>a&amp;b&#10;&#xe4;&lt;</Key></C><C><Key/></C></R>";
  CHECK(XmlText(xml, "Key") == "a&b\n\xC3\xA4<");
  CHECK(XmlText(xml, "KeyCount") == "2");
  CHECK(XmlText(xml, "Missing").empty());
  CHECK(XmlElements(xml, "C").size() == 2);
  CHECK(XmlElements(xml, "R").size() == 1);
  CHECK(XmlText("<A>&unknown; &#xFFFFFFFF; & x</A>", "A") == "&unknown; &#xFFFFFFFF; & x");
}

TEST_CASE("what is cut off is not there") {
  for (const char* xml : {"", "<", "<A", "<A>", "<A>x", "<A>x</A", "<AB>x</AB>", "A>x</A>"}) {
    CAPTURE(xml);
    CHECK(XmlElements(xml, "A").empty());
  }
}

TEST_CASE("text is escaped") { CHECK(XmlEscape("\"a&b<c>'\"") == "&quot;a&amp;b&lt;c&gt;&apos;&quot;"); }

}  // namespace engine::storage
